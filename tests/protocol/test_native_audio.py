"""The native dialect: audio in messages, and the take."""

from __future__ import annotations

import numpy as np
import pytest

from rt_drama3.protocol import Outcome, ProtocolLimits
from tests.protocol.tools import native, started

CODES = np.arange(40, dtype=np.int64).reshape(10, 4)
CODES_BIN = CODES.astype("<u2").tobytes()


@pytest.mark.parametrize(("name", "width"), [("pcm", 2), ("pcm_f32", 4), ("wav", 2)])
def test_large_audio_is_cut_into_whole_samples(name: str, width: int) -> None:
    client = native(ProtocolLimits(audio_bytes=2_048))
    utterance = started(client, format=name)
    header = b"H" * 44 if name == "wav" else b""
    pcm = bytes(range(256)) * 20
    first = client.hear(utterance.audio, header + pcm, len(pcm) // width)
    more = client.hear(utterance.audio, pcm, len(pcm) // width)
    assert b"".join(message["audio"] for message in first + more) == header + pcm + pcm
    samples = 0
    for number, message in enumerate(first + more):
        assert message["seq"] == number
        assert message["first_sample"] == samples
        assert len(message["audio"]) % width == 0
        samples += message["samples"]
    assert samples == 2 * len(pcm) // width == utterance.sent.samples


def test_encoded_audio_counts_what_the_encoder_was_given() -> None:
    client = native(ProtocolLimits(audio_bytes=1_024))
    utterance = started(client, format="mp3", bitrate=64_000)
    assert client.last()["bitrate"] == 64_000
    assert client.hear(utterance.audio, b"", 2_048) == []
    assert utterance.first_audio is None
    a, b = client.hear(utterance.audio, bytes(1_025), 2_048)
    assert (a["first_sample"], a["samples"]) == (2_048, 2_048)
    assert (b["first_sample"], b["samples"], len(b["audio"])) == (4_096, 0, 1)


def test_the_take_comes_with_done_when_asked_for() -> None:
    client = native()
    utterance = started(client, take=True)
    client.hear(utterance.done, Outcome(frames=4, codes=CODES))
    take = client.last()["take"]
    assert (take["num_codebooks"], take["frames"], take["vq_codes"]) == (10, 4, CODES_BIN)
    # It is what a later start takes as history.
    turn = {"text": "Before.", "vq_codes": take["vq_codes"]}
    order = started(native(), history=[turn]).order
    assert order.history[0].source[0] == "Before."
    np.testing.assert_array_equal(order.history[0].codes, CODES)
    utterance = started(client)
    client.hear(utterance.done, Outcome(frames=4, codes=CODES))
    assert "take" not in client.last()
