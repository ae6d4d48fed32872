"""``rt-drama3-client``: speaks an argument or standard input; plays, saves, pipes or measures it.

Exit codes: 0 success, 1 refused or failed, 2 invalid arguments, 3 no server, 4 failed in the middle
of the audio, 130 interrupted, 141 closed pipe, 143 terminated.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, Protocol

from rt_drama3_client.address import KEY_VARIABLE, URL_VARIABLE, Settings
from rt_drama3_client.audio_files import AudioFile, check_fits, format_of
from rt_drama3_client.errors import ClientError, ConnectFailed, UsageError
from rt_drama3_client.measure import TEXT, measure
from rt_drama3_client.messages import AudioChunk, Ready
from rt_drama3_client.options import FORMAT_NAMES
from rt_drama3_client.sources import FLUSH, Part
from rt_drama3_client.speaker import Speaker
from rt_drama3_client.sync import Client, Speech

SPEECH_OPTIONS = (
    *("voice", "sample_rate", "bitrate", "seed", "temperature", "top_p", "top_k"),
    *("max_seconds", "gain_db", "guidance", "steering"),
)
BLOCK = 65_536  # bytes read from standard input per call


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the console lacks are escaped
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return _run(options)
    except UsageError as error:
        parser.error(str(error))
    except BrokenPipeError:
        # Otherwise flushing the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ConnectFailed as error:
        return _print_stderr(f"error: {error}", 3)
    except ClientError as error:
        return _print_stderr(f"error: {error}", 4 if error.received.messages else 1)
    except OSError as error:
        return _print_stderr(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _print_stderr("stopped", 130)
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from rt_drama3_client import __version__

    parser = argparse.ArgumentParser(
        "rt-drama3-client", description="Speaks through an rt-drama3 server.", allow_abbrev=False
    )
    add = parser.add_argument
    add("text", nargs="?", help="text to speak; - reads standard input while it is written")
    add("-o", "--out", help="file to write (.wav .mp3 .opus .flac .aac .pcm), or - for a pipe")
    add("--format", choices=FORMAT_NAMES, help="default: by the file's extension; wav for a pipe")
    add("--by", choices=("line", "word"), default="line", help="how standard input is sent")
    add("--device", help="index or name of the output device")
    add("--url", help=f"server; default: ${URL_VARIABLE}, then this machine")
    add("--api-key", help=f"visible to other users of this machine; prefer ${KEY_VARIABLE}")
    add("--timeout", type=float, default=30.0, help="seconds to wait for the server (30)")
    add("--voice", help="name of a stored voice")
    add("--sample-rate", type=int, help="Hz")
    add("--bitrate", type=int, help="bits per second, for mp3, opus and aac")
    add("--seed", type=int, help="the same seed gives the same speech")
    add("--temperature", type=float, help="0 is greedy")
    add("--top-p", type=float)
    add("--top-k", type=int)
    add("--max-seconds", type=float, help="limit of the duration in seconds")
    add("--gain-db", type=float, help="gain in dB, -20 to 20")
    add("--guidance", type=float, help="how strongly [directions] are followed, 0 (off) to 20")
    add(
        "--steer",
        action="append",
        type=_steering,
        dest="steering",
        metavar="NAME=STRENGTH",
        help="a steering vector of the server; repeatable",
    )
    add("--json", action="store_true", help="print metrics as JSON to stdout (stderr with --out -)")
    add("--measure", type=int, metavar="N", help="speak N times and report latency and speed")
    add("--barge-in", action="store_true", help="with --measure: also measure cancels")
    add("--voices", action="store_true", help="list the stored voices")
    add("--models", action="store_true", help="list the models")
    add("--version", action="version", version=f"rt-drama3-client {__version__}")
    return parser


def _steering(given: str) -> tuple[str, float]:
    name, _, strength = given.partition("=")
    try:
        if name:
            return name, float(strength)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{given!r} is not NAME=STRENGTH, e.g. excited=1.5")


def _run(options: argparse.Namespace) -> int:
    settings = Settings(timeout=options.timeout)
    speech_options = {name: getattr(options, name) for name in SPEECH_OPTIONS}
    if options.voices or options.models:
        return _list(options, settings)
    if options.measure is not None:
        return _measure(options, settings, speech_options)
    if options.barge_in:
        raise UsageError("--barge-in requires --measure N.")
    if options.text is None:
        raise UsageError("no text was given; pass some, or - to read standard input.")
    if any("\udc80" <= character <= "\udcff" for character in options.text):
        raise UsageError(
            f"the text is not UTF-8 (the locale's encoding is {sys.getfilesystemencoding()}); set "
            "LC_ALL=C.UTF-8 or PYTHONUTF8=1."
        )
    speech_options["format"] = _format(options)
    text = _standard_input(options.by) if options.text == "-" else options.text
    with Client(options.url, api_key=options.api_key, settings=settings) as client:
        speech = client.speak(text, **speech_options)
        with _target(options) as target:
            for event in speech.events():
                if isinstance(event, AudioChunk):
                    target.write(event)
                elif isinstance(event, Ready) and isinstance(target, _Card):
                    target.begin(event.sample_rate)
            if isinstance(target, AudioFile) and speech.done is not None:
                target.samples = speech.done.sent.samples
        return _report(options, speech)


def _format(options: argparse.Namespace) -> str:
    """Returns the format to request from the server."""
    requested: str | None = options.format
    if options.out is None:
        if requested not in (None, "pcm"):
            raise UsageError(f"--format {requested} cannot be played; add --out FILE.")
        return "pcm"
    if options.out == "-":
        if sys.stdout is None:
            raise UsageError("standard output is closed; open it, or write to a file.")
        return requested or "wav"
    if requested is None:
        return format_of(options.out)
    check_fits(options.out, requested)
    return requested


class _Target(Protocol):
    """Destination of the audio."""

    def write(self, audio: bytes) -> object:
        """Writes audio."""


class _Pipe:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, audio: bytes) -> None:
        self._file.write(audio)
        self._file.flush()


class _Card(AbstractContextManager["_Card"]):
    """The sound card, which is opened while the server generates the first audio."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._speaker: Speaker | None = None

    def begin(self, rate: int) -> None:
        if self._speaker is None:
            self._speaker = Speaker(rate, self._device)

    def write(self, audio: bytes) -> None:
        assert self._speaker is not None
        self._speaker.write(audio)

    def __exit__(self, *error: Any) -> None:
        if self._speaker is not None:
            self._speaker.__exit__(*error)


def _target(options: argparse.Namespace) -> AbstractContextManager[_Target]:
    if options.out is None:
        return _Card(options.device)
    if options.out == "-":
        return nullcontext(_Pipe(sys.stdout.buffer))
    folder = os.path.dirname(options.out)
    if folder and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a directory; create it first.")
    return AudioFile(options.out)


def _report(options: argparse.Namespace, speech: Speech) -> int:
    """Prints the metrics: JSON, or text to stderr."""
    done, timings, ready = speech.done, speech.timings, speech.ready
    assert done is not None
    assert ready is not None
    first = timings.first_audio
    facts = {
        "file": options.out,
        "request_id": done.id,
        "model": ready.model,
        "format": ready.format,
        "sample_rate": ready.sample_rate,
        "seconds": done.sent.seconds,
        "seed": done.seed,
        "complete": done.complete,
        "connect_ms": round(1e3 * timings.connect, 3),
        "first_audio_ms": None if first is None else round(1e3 * first, 3),
        "worst_underrun_ms": round(1e3 * timings.playback.worst_underrun, 3),
        "server": dict(timings.server),
    }
    if options.json:
        shown = json.dumps(facts)
        return _print_stderr(shown, 0) if options.out == "-" else _print_stdout(shown)
    if first is None:
        return _print_stderr("the text had no speakable content", 0)
    what = "spoke" if options.out in (None, "-") else f"wrote {options.out}:"
    _print_stderr(
        f"{what} {done.sent.seconds:.2f} s at {ready.sample_rate} Hz, first audio after "
        f"{1e3 * first:.0f} ms, seed {done.seed}",
        0,
    )
    for notice in speech.notices:
        _print_stderr(f"note: {notice}", 0)
    return 0 if done.complete else _print_stderr("the speech reached its length limit", 0)


def _measure(options: argparse.Namespace, settings: Settings, requested: dict[str, Any]) -> int:
    if options.measure < 1:
        raise UsageError(f"--measure is {options.measure}; it must be at least 1.")
    if options.out is not None or options.text == "-" or options.format not in (None, "pcm"):
        raise UsageError("--measure needs a text argument and pcm, without --out.")
    text = options.text or TEXT
    work = measure(
        *(options.url, options.api_key, settings, text, options.measure, options.barge_in),
        requested,
    )
    report = asyncio.run(work)
    shown = json.dumps(report.as_json()) if options.json else report.table()
    return _print_stdout(shown)


def _list(options: argparse.Namespace, settings: Settings) -> int:
    with Client(options.url, api_key=options.api_key, settings=settings) as client:
        lines = client.models() if options.models else []
        if options.voices:
            lines += [f"{voice.name}  {voice.seconds:.1f} s" for voice in client.voices()]
    return _print_stdout("\n".join(lines)) if lines else 0


def _standard_input(by: str) -> Iterator[Part]:
    """Yields standard input as it arrives: lines, each flushed immediately, or words."""
    decoder, offset, rest = codecs.getincrementaldecoder("utf-8-sig")(), 0, ""
    while True:
        # Not sys.stdin: a thread blocked in it would keep the process from exiting.
        try:
            block = os.read(0, BLOCK)
        except OSError as error:
            raise UsageError(f"standard input cannot be read: {error.strerror}.") from error
        try:
            rest += decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input is not UTF-8 text (near byte {offset + error.start}); convert it."
            ) from error
        offset += len(block)
        if by == "line":
            *lines, rest = rest.split("\n")
            for line in lines:
                yield line + "\n"
                yield FLUSH
        elif block:
            end = max(rest.rfind(" "), rest.rfind("\n")) + 1
            if end:
                yield rest[:end]
            rest = rest[end:]
        if not block:
            yield rest
            return


def _terminated(*_: object) -> None:
    """Exits by exception on SIGTERM, so that files are closed with correct sizes."""
    sys.exit(143)


def _print_stdout(text: str) -> int:
    if sys.stdout is not None:  # it is where the process was started with it closed
        sys.stdout.write(text + "\n")
    return 0


def _print_stderr(message: str, code: int) -> int:
    if sys.stderr is not None:
        sys.stderr.write(message + "\n")
    return code
