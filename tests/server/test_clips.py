"""Clips of a request: read once, reported by their place when they are bad, kept within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rt_drama3.audio.wav import wav_header
from rt_drama3.errors import RequestError
from rt_drama3.protocol import Directing, Reference, Refused, SpeechOrder
from rt_drama3.scenes import references
from rt_drama3.server.references import clips
from rt_drama3.server.references.clips import read_clips
from tests.small import shared_drama

RATE = 22_050


def file_of(seconds: float) -> bytes:
    noise = np.random.default_rng(0).integers(-9_999, 9_999, round(RATE * seconds))
    pcm = noise.astype("<i2").tobytes()
    return wav_header(RATE, len(pcm)) + pcm


def order_of(*files: bytes, **more: Any) -> SpeechOrder:
    return SpeechOrder(references=tuple(Reference("Hm.", audio=file) for file in files), **more)


def test_the_engine_need_not_read_a_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drama, file = shared_drama(), file_of(0.5)
    expected = drama.voice([("Hm.", file)])
    take = Reference("Before.", audio=file)
    order = order_of(file, directing=Directing(previous_takes=(take,)))
    order = read_clips(order, drama, 60.0)

    def read(*_: object, **__: object) -> None:
        pytest.fail("read again")

    monkeypatch.setattr(references, "read_audio", read)
    found = drama.voice([clip.source for clip in order.references])
    assert np.array_equal(found[0][1], expected[0][1])
    assert not any(clip.audio for clip in order.references)
    (before,) = order.directing.settings()["previous_takes"]
    assert np.array_equal(drama.references.clip(before.audio), expected[0][1])


def test_samples_are_kept_up_to_a_limit_and_files_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many streams may wait: samples are much larger than the files that they come in."""
    monkeypatch.setattr(clips, "KEPT_BYTES", 4 * RATE)  # a second of float32
    order = read_clips(order_of(*map(file_of, (0.6, 0.6, 0.3))), shared_drama(), 60.0)
    assert [clip.samples is not None for clip in order.references] == [True, False, True]
    assert [clip.audio is None for clip in order.references] == [True, False, True]


def test_a_clip_as_long_as_the_limit_allows_is_not_refused_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grace that a file has (encoders pad its end), its samples have as well."""
    monkeypatch.setattr(references, "MAX_REFERENCE_SECONDS", 1.0)
    drama = shared_drama()
    order = read_clips(order_of(file_of(1.05)), drama, 1.0)
    assert drama.voice([clip.source for clip in order.references])[0][1].shape[1] > 0


def test_bad_clips_are_reported_by_their_place() -> None:
    drama, good = shared_drama(), file_of(0.1)
    with pytest.raises(Refused, match=r"references\[1\].*not a supported audio file"):
        read_clips(order_of(good, b"no audio"), drama, 60.0)
    with pytest.raises(Refused, match=r"references\[0\].*longer than the limit"):
        read_clips(order_of(file_of(1.5)), drama, 1.0)
    wrong = Reference("Hm.", codes=np.full((3, 4), 99))
    with pytest.raises(Refused, match=r"history\[0\].*is 99"):
        read_clips(SpeechOrder(history=(wrong,)), drama, 60.0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((np.zeros(9),), r"reference 1 is a tuple of 1; use \(samples, sample_rate\)"),
        ((np.zeros(9), "fast"), "reference 1 has sample rate 'fast'"),
        ((np.zeros(9), float("nan")), "reference 1 has sample rate nan"),
        ((np.zeros(9), None), "reference 1 has sample rate None"),
    ],
)
def test_samples_without_a_rate_are_refused(source: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        shared_drama().voice([("Hm.", source)])  # type: ignore[list-item]
