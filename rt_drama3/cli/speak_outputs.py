"""Outputs of ``speak``: a file (``--out``) and any number of sinks (``--sink``).

Heavy imports wait until they are used, so that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from rt_drama3.cli.common import check_folder, release_stdout, show
from rt_drama3.errors import RequestError, SinkError

if TYPE_CHECKING:
    from rt_drama3.engine.best_of import FinishedTake
    from rt_drama3.engine.speech import Speech
    from rt_drama3.sinks import Sink

Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Output file (default without --sink: speech.wav): .wav, .flac, .mp3, .opus, .ogg, "
        ".aac, .pcm or .raw (16-bit samples without a header); - writes WAV to stdout.",
        dir_okay=False,
    ),
]
Sinks: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--sink",
        help="Play while generating: speaker[:DEVICE], mic[:NAME], - or a file; repeatable.",
    ),
]


@dataclass(frozen=True)
class Output:
    """Where speech goes.

    Attributes:
        specs: the sinks; see ``sinks.make_sink``.
        file: that of ``--out`` where it is the only one, or None; "-" is stdout.
    """

    specs: list[str]
    file: str | None = None

    def __str__(self) -> str:
        return f"wrote {self.file}" if self.file else f"played into {', '.join(self.specs)}"

    @property
    def to_stdout(self) -> bool:
        """Whether audio goes to stdout, which then cannot take messages."""
        return _to_stdout(self.specs)

    def sample_rate(self, rate: int) -> int:
        """Sample rate of the output in Hz, for speech of ``rate``; formats may lack it."""
        from rt_drama3.audio.stream_encode import format_of, rate_for

        if self.file is None or self.file == "-":
            return rate
        return rate_for(format_of(self.file), rate)


def choose_output(out: Path | None, sinks: Sequence[str] | None, inputs: Sequence[Path]) -> Output:
    """Combines ``--out`` and ``--sink``; checks both before a model is loaded.

    Args:
        out: the file, or None.
        sinks: specs of sinks.
        inputs: files that must not be overwritten.

    Raises:
        RequestError: an output cannot be used, overwrites a reference, or is given twice.
        SinkError: this system has no loopback device to use as a microphone.
    """
    from rt_drama3.sinks import make_sink

    specs = list(sinks or ())
    if out is not None or not specs:
        specs.append(_file_sink(out or Path("speech.wav")))
    if _to_stdout(specs) and sys.stdout is None:
        raise RequestError("standard output is closed; open it, or write to a file.")
    seen: dict[str, str] = {}
    for spec in specs:
        sink = make_sink(spec)
        target = sink.name
        if spec.partition(":")[0] not in ("speaker", "mic") and not _to_stdout([spec]):
            if any(Path(target).resolve() == path.resolve() for path in inputs):
                raise RequestError(f"{target} is also a reference; choose another output.")
            target = os.path.realpath(target)
        if target in seen:
            both = spec if seen[target] == spec else f"{seen[target]} and {spec}"
            raise RequestError(f"{sink.name} is given twice as an output ({both}); give it once.")
        seen[target] = spec
    return Output(specs, None if sinks else str(out or "speech.wav"))


def _file_sink(out: Path) -> str:
    """Returns the sink of ``--out``: a path, even with a colon in it, or "-"."""
    from rt_drama3.audio.stream_encode import FORMATS, format_of

    if str(out) != "-":
        sink = f"FORMAT:PATH is a sink, --sink {out}."
        check_folder(out, sink if str(out).partition(":")[0] in FORMATS else "create it first.")
        format_of(out)
    return os.path.join(os.curdir, out) if ":" in str(out) else str(out)


def play(
    speech: Speech | FinishedTake,
    output: Output,
    rate: int,
    update: Callable[[int, int], None],
) -> float | None:
    """Writes speech to an output as it arrives.

    Args:
        speech: cancelled when this is left early.
        output: opened here.
        rate: sample rate of the speech in Hz.
        update: receives the current segment and their number.

    Returns:
        Milliseconds from the request until the first audio was decoded; None without audio.

    Raises:
        SinkError: the output cannot be opened or written.
    """
    chunks = iter(speech)
    try:
        # Devices open while the first audio is being made; files are not replaced before it is.
        devices = any(spec.partition(":")[0] in ("speaker", "mic") for spec in output.specs)
        first = None if devices else next(chunks, None)
        with opened(output.specs, rate) as sink:
            first = first or next(chunks, None)
            for chunk in itertools.chain([] if first is None else [first], chunks):
                sink.write(chunk.pcm)
                update(chunk.segment, speech.known_segments)
    finally:
        speech.cancel()
    return None if first is None else 1e3 * (first.stamps.decoded - first.stamps.accepted)


@contextlib.contextmanager
def opened(specs: Sequence[str], rate: int) -> Iterator[Sink]:
    """Opens sinks for one mono stream.

    At a normal exit everything is played to the end; Ctrl-C or an error is a short fade.

    Args:
        specs: see ``sinks.make_sink``.
        rate: sample rate of what is written, in Hz.

    Raises:
        SinkError: no sink can be opened, or some failed or lost sound; the others were played to
            the end.
        PipeClosed: all that failed are pipes whose readers have exited.
        RequestError: a spec is invalid.
    """
    from rt_drama3.sinks import PcmFormat, Tee, make_sink
    from rt_drama3.sinks.sink import lost_sound
    from rt_drama3.sinks.tee import combined

    made = [make_sink(spec) for spec in specs]
    tee = Tee(made, lambda *_: None)  # failures are reported once, below
    sink: Sink = made[0] if len(made) == 1 else tee
    failures: list[SinkError] = []
    try:
        sink.open(PcmFormat(rate, encoding="f32le"))
        with sink:
            yield sink
    except SinkError as error:
        failures = [error]
    except BaseException:  # Ctrl-C, or the speech failed: the caller reports that
        for failure in tee.errors.values():
            show(str(failure))
        raise
    finally:
        if _to_stdout(specs):
            release_stdout()
    failures = list(tee.errors.values()) or failures
    failures += [lost_sound(one) for one in made if one.stats.lost]
    if failures:
        raise combined(failures)


def _to_stdout(specs: Sequence[str]) -> bool:
    return any(spec.rpartition(":")[2] == "-" for spec in specs)
