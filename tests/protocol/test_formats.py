"""Formats: defaults, refusals, bit rates, and cutting audio into messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_drama3.errors import ConfigError, RequestError
from rt_drama3.protocol.formats import FORMATS, Output, negotiate, split_audio
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from tests.protocol.tools import FACTS


def test_defaults_are_the_models_rate_where_the_format_has_it() -> None:
    assert negotiate("pcm", None, None, FACTS) == Output("pcm", 44_100)
    assert negotiate("wav", None, None, FACTS, 24_000) == Output("wav", 24_000)
    assert negotiate("opus", None, None, FACTS, 24_000) == Output("opus", 48_000)
    assert negotiate("mp3", None, None, ModelFacts(sample_rate=25_000)) == Output("mp3", 24_000)


def test_unknown_rates_are_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused, match=r"sample_rate is 11025; pcm has these rates: 8000, 16000"):
        negotiate("pcm", 11_025, None, FACTS)
    with pytest.raises(Refused, match="opus has these rates: 8000, 16000, 24000, 48000") as caught:
        negotiate("opus", 44_100, None, FACTS)
    assert caught.value.code == "unsupported_format"


@pytest.mark.parametrize(
    ("name", "rate", "asked", "settled"),
    [
        ("mp3", 44_100, 192_000, 192_000),
        ("mp3", 44_100, 8_000, 32_000),
        ("mp3", 44_100, 1_000_000, 320_000),
        ("mp3", 24_000, 192_000, 160_000),
        ("mp3", 16_000, 128_000, 128_000),
        ("mp3", 8_000, 128_000, 64_000),
        ("opus", 48_000, 64_000, 64_000),
        ("opus", 48_000, 1, 6_000),
        ("aac", 16_000, 256_000, 96_000),
        ("aac", 16_000, 1_000, 8_000),
        ("wav", 16_000, 64_000, None),
        ("mp3", 44_100, None, None),
    ],
)
def test_the_nearest_bit_rate_is_taken(
    name: str, rate: int, asked: int | None, settled: int | None
) -> None:
    assert negotiate(name, rate, asked, FACTS).bitrate == settled


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_settled_output_can_be_encoded(name: str) -> None:
    encode = pytest.importorskip("rt_drama3.audio.stream_encode")
    for rate in FORMATS[name].rates:
        for bitrate in (None, 1, 64_000, 10_000_000):
            output = negotiate(name, rate, bitrate, FACTS)
            encode.StreamEncoder(name, output.sample_rate, bitrate=output.bitrate)


def test_the_content_type_of_raw_audio_has_its_rate() -> None:
    assert Output("pcm", 16_000).content_type() == "audio/pcm; rate=16000; channels=1"
    assert Output("mp3", 44_100).content_type() == "audio/mpeg"


@given(st.binary(max_size=300), st.integers(4, 64), st.sampled_from([0, 2, 4]))
def test_pieces_join_again_and_cut_no_sample(audio: bytes, limit: int, width: int) -> None:
    audio = audio[: len(audio) - len(audio) % (width or 1)]
    pieces = list(split_audio(audio, limit, width))
    assert b"".join(pieces) == audio
    assert all(0 < len(piece) <= limit for piece in pieces)
    assert all(len(piece) % (width or 1) == 0 for piece in pieces)


def test_half_samples_are_refused() -> None:
    with pytest.raises(RequestError, match="3 bytes of PCM are not whole samples of 2 bytes"):
        list(split_audio(b"abc", 10))
    with pytest.raises(RequestError, match="cannot hold a sample"):
        list(split_audio(b"abcd", 3, 4))


def test_limits_that_no_client_could_keep_are_refused() -> None:
    with pytest.raises(ConfigError, match="references is 0"):
        ProtocolLimits(references=0)
    for size in (100, 65_536, 2_001):
        with pytest.raises(ConfigError, match=f"audio_bytes is {size}"):
            ProtocolLimits(audio_bytes=size)
    assert ProtocolLimits(audio_bytes=64_512).audio_bytes == 64_512
