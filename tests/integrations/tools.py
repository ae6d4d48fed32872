"""What tests of other people's clients share: a server that is watched, and audio that is compared.

The clients are the published packages and nothing on their side is replaced. They cannot send a
seed, so the engine behind the server gives all streams the same one; then what a client heard must
be, bit for bit, what the native dialect brings for the same text.
"""

from __future__ import annotations

import gc
import importlib.metadata
import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from rt_drama3.audio import StreamResampler, read_audio
from rt_drama3.audio.pcm import float_to_s16le
from rt_drama3.audio.stream_resample import Quality
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.stream import Stream
from tests.server.tools import Place, audio_of
from tests.small import WAIT, Frames, until

SEED = 48  # with which the small checkpoint speaks for some frames
FLUSH = object()
SENTENCE = "Hello there."
SENTENCES = ["Hello there.", "And another one.", "Now the third."]


def installed(package: str) -> str:
    """The version of an installed distribution; empty if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


class Watched:
    """A server whose streams have the same seed and are kept.

    Attributes:
        place: the server.
        speeches: every stream that was opened, oldest first.
    """

    def __init__(self, place: Place, engine: Engine) -> None:
        self.place = place
        self.speeches: list[Speech] = []
        self._streams: list[Stream | None] = []
        self._engine = engine
        self._open = engine.open
        engine.open = self._opened  # type: ignore[method-assign]

    def _opened(self, request: SpeechRequest) -> Speech:
        if request.seed is None:
            request = replace(request, seed=SEED)
        speech = self._open(request)
        self._streams.append(self._engine.core.streams.get(speech))
        self.speeches.append(speech)
        return speech

    def restore(self) -> None:
        """Leaves the engine as it was."""
        self._engine.open = self._open  # type: ignore[method-assign]

    @property
    def url(self) -> str:
        return self.place.url

    def segments(self, number: int) -> list[tuple[str, int]]:
        """Text and first frame of each segment that a stream has begun so far."""
        stream = self._streams[number]
        return list(
            self.speeches[number].result(WAIT).segments if stream is None else stream.segments
        )

    def frames(self) -> int:
        """Frames of the last stream, once it has ended."""
        return self.speeches[-1].result(WAIT).codes.shape[1]

    def native(self, *parts: Any, sample_rate: int = 44_100, **start: Any) -> bytes:
        """Audio (PCM where nothing else is asked for) of text, by the native dialect.

        Its length is checked against the frames that the engine made.

        Args:
            parts: of the text; ``FLUSH`` may be between.
            sample_rate: Hz.
            start: more fields of ``start``.
        """
        with self.place.native() as client:
            client.send("start", sample_rate=sample_rate, seed=SEED, **start)
            for part in parts:
                if part is FLUSH:
                    client.send("flush")
                else:
                    client.send("text", text=part)
            client.send("finish")
            messages = client.take_until("done", "error")
        done = messages[-1]
        assert done["type"] == "done", done
        data = audio_of(messages)
        samples = samples_of(done["frames"], sample_rate)
        assert done["sent"]["samples"] == samples > 0
        assert "format" in start or len(data) == 2 * samples
        self.speeches.pop()  # it was not the client's
        return data

    def native_pieces(
        self, *texts: str, sample_rate: int, quality: Quality = "low_latency"
    ) -> list[bytes]:
        """PCM of texts that one stream speaks one after the other, flushed, each resampled alone.

        That is what a listener must have heard who waits for each before the next.
        """
        model_rate = 44_100
        with self.place.native() as client:
            client.send("start", format="pcm_f32", sample_rate=model_rate, seed=SEED)
            for text in texts:
                client.send("text", text=text)
                client.send("flush")
            client.send("finish")
            messages = client.take_until("done", "error")
        self.speeches.pop()
        data = np.frombuffer(audio_of(messages), "<f4")
        begins = [m["first_sample"] for m in messages if m["type"] == "segment"]
        assert len(begins) == len(texts)
        pieces = []
        for piece in np.split(data, begins[1:]):
            resampler = StreamResampler(model_rate, sample_rate, quality)
            whole = np.concatenate([resampler.push(piece), resampler.flush()])
            pieces.append(float_to_s16le(whole))
        return pieces


def samples_of(frames: int, sample_rate: int) -> int:
    """How many samples frames of the engine become."""
    return -(-frames * 2048 * sample_rate // 44_100)


@contextmanager
def watching(place: Place) -> Iterator[Watched]:
    """A server, watched for a while."""
    assert place.engine is not None
    watched = Watched(place, place.engine)
    try:
        yield watched
    finally:
        watched.restore()
        place.until_free()


def assert_same(heard: bytes, expected: bytes) -> None:
    """PCM is the same to the last bit; says where it is not."""
    assert len(heard) % 2 == 0
    mine, theirs = np.frombuffer(heard, "<i2"), np.frombuffer(expected, "<i2")
    both = min(len(mine), len(theirs))
    other = np.flatnonzero(mine[:both] != theirs[:both])
    first = int(other[0]) if len(other) else both
    assert heard == expected, (
        f"{len(mine)} samples instead of {len(theirs)}, {len(other)} of them other ones, "
        f"the first at {first}"
    )


def assert_whole(encoded: bytes, samples: int, sample_rate: int) -> None:
    """A file has that rate and none of that many samples are missing; encoders fill up blocks."""
    heard, rate = read_audio(io.BytesIO(encoded))
    assert rate == sample_rate
    assert 0 <= len(heard) - samples <= 0.1 * rate, f"{len(heard)} samples instead of {samples}"


def level(pcm: bytes) -> float:
    """RMS of PCM, 1 being full scale."""
    samples = np.frombuffer(pcm, "<i2") / 32768
    return float(np.sqrt(np.mean(np.square(samples))))


class Interruption:
    """Holds the engine so that the frames behind an interruption can be counted.

    Make it before the stream is asked for: the engine then stops in front of the frame after
    ``ALLOWED``. That frame is the one that may still be made.

    Args:
        watched: the server.
        begun: the stream is open already and has spoken nothing.
    """

    ALLOWED = 8

    def __init__(self, watched: Watched, begun: bool = False) -> None:
        assert watched.place.engine is not None
        self._watched, self._number = watched, len(watched.speeches) - begun
        self._frames = Frames(watched.place.engine)
        self._frames.hold()
        self._frames.allow(self.ALLOWED)

    @property
    def _speech(self) -> Speech:
        return self._watched.speeches[self._number]

    def wait_until_held(self) -> None:
        """Waits until the engine stands; interrupt it then."""
        until(lambda: self._frames.made[self._speech] == self.ALLOWED, "making frames")

    def wait_until_known(self) -> None:
        """Waits until the server has cancelled the stream."""
        until(lambda: self._speech._cancelled, "noticing the client's close")

    def finish(self) -> int:
        """Lets the engine continue; returns how many frames it made of the stream since."""
        self._frames.free()
        until(lambda: self._speech.ended, "ending the stream")
        runner = self._watched.place.engine.core.runner  # type: ignore[union-attr]
        runner.frame = self._frames.real  # type: ignore[method-assign]
        return self._frames.made[self._speech] - self.ALLOWED


@dataclass
class Footprint:
    """What a process holds, on both sides of the server's port."""

    bytes: int
    threads: int
    tasks: int
    client_sockets: int
    server_sockets: int


def footprint(port: int, tasks: int = 0) -> Footprint:
    """Measures it."""
    gc.collect()
    process = psutil.Process()
    open_ones = [c for c in process.net_connections("tcp") if c.status == "ESTABLISHED"]
    return Footprint(
        process.memory_info().rss,
        threading.active_count(),
        tasks,
        sum(bool(c.raddr) and c.raddr.port == port for c in open_ones),
        sum(c.laddr.port == port for c in open_ones),
    )


def joined(parts: Sequence[npt.NDArray[np.int16]]) -> bytes:
    """Samples of frames as bytes."""
    return b"".join(part.tobytes() for part in parts)
