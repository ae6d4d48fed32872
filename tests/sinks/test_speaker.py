"""The speaker on fake devices: rate negotiation, no lost samples, failure and recovery."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rt_drama3.errors import SinkError
from rt_drama3.sinks import PcmFormat, SpeakerSink, device_sink, make_sink, portaudio_stream
from rt_drama3.sinks.pcm_format import to_int16
from rt_drama3.sinks.prebuffer import Prebuffer
from tests.sinks.doubles import FakePyAudio, card, error
from tests.sinks.private_pulse import sounding

Install = Callable[..., FakePyAudio]
MONO = PcmFormat(48_000, encoding="f32le")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(*found: dict[str, Any]) -> FakePyAudio:
        fake = FakePyAudio(*found)
        monkeypatch.setitem(sys.modules, "pyaudio", fake)
        return fake

    monkeypatch.setattr(device_sink, "_RETRY_SECONDS", 0.0)
    monkeypatch.setenv("PULSE_SERVER", "unix:/nowhere/native")  # not this machine's own server
    return install


def noise(count: int, seed: int = 0) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).uniform(0.1, 0.9, count)  # never zero
    return values.astype(np.float32)


@pytest.mark.parametrize("block", [1, 7, 441, 2_048, 50_000])
def test_every_sample_is_played_once_on_every_channel(cards: Install, block: int) -> None:
    fake = cards(card("front"))
    clip = noise(3 * block if block < 100 else 20_000)
    with SpeakerSink() as sink:
        sink.open(MONO)
        for at in range(0, len(clip), block):
            sink.write(clip[at : at + block])
    played = fake.samples("front")
    assert played.shape[1] == 2
    assert np.array_equal(played[:, 0], played[:, 1])
    # The fake card requests faster than we write, so there may be gaps, but no lost samples.
    assert np.array_equal(played[played[:, 0] != 0, 0], to_int16(clip[:, None])[:, 0])
    assert not played[:2_400].any()  # 50 ms of silence at the start
    assert len(played) - np.nonzero(played[:, 0])[0][-1] > 2_880  # and 60 ms after the end
    assert fake.users == 0


@pytest.mark.parametrize("frames", [64, 128, 256, 512, 1_024, 2_048])
def test_any_block_size_of_the_device_works(cards: Install, frames: int) -> None:
    fake = cards(card("front"))
    clip = noise(20_000)
    whole = Prebuffer(
        least_ms=2_000, most_ms=2_000, first_ms=2_000
    )  # the fake card is far too fast
    sink = SpeakerSink(block_ms=1e3 * frames / 48_000, buffer_ms=4_000, prebuffer=whole)
    sink.open(MONO)
    for at in range(0, len(clip), 5_120):  # not a multiple of the block size
        sink.write(clip[at : at + 5_120])
    sink.drain()
    sink.close()
    assert fake.opened[0]["frames_per_buffer"] == frames
    heard = fake.samples("front")[:, 0]
    first = np.flatnonzero(heard)[0]
    expected = to_int16(clip[:, None])[:, 0]
    assert np.array_equal(heard[first : first + len(clip)], expected)  # without a gap
    assert not heard[first + len(clip) :].any()


@pytest.mark.parametrize(("name", "frames"), [("front", 480), ("pulse", 960), ("default", 960)])
def test_plugin_of_a_sound_server_gets_longer_blocks(
    cards: Install, name: str, frames: int
) -> None:
    fake = cards(card(name))  # the server itself does not respond
    with SpeakerSink(name) as sink:
        sink.open(MONO)
    assert fake.opened[0]["frames_per_buffer"] == frames


def test_device_keeps_its_native_rate(cards: Install) -> None:
    fake = cards(card("front", outputs=1, rate=44_100))
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)).astype(np.float32)
    whole = Prebuffer(
        least_ms=2_000, most_ms=2_000, first_ms=2_000
    )  # the fake card is far too fast
    sink = SpeakerSink(buffer_ms=4_000, prebuffer=whole)
    sink.open(PcmFormat(16_000, encoding="f32le"))
    assert sink.stats.device_rate == 44_100
    assert sink.stats.latency_ms == pytest.approx(20)
    sink.write(tone)
    sink.drain()
    sink.close()
    played = fake.samples("front")
    assert fake.opened[0]["rate"] == 44_100
    heard = sounding(played[:, 0])
    assert len(heard) == pytest.approx(44_100, abs=40)
    spectrum = np.abs(np.fft.rfft(heard[:44_100] * np.hanning(len(heard[:44_100]))))
    assert np.argmax(spectrum) == pytest.approx(440, abs=1)


def test_unsupported_rates_and_channels_lead_to_the_next(cards: Install) -> None:
    fake = cards(card("front"))

    def refuse(arguments: dict[str, Any]) -> None:
        if arguments["rate"] != 24_000:
            raise error(-9997, "Invalid sample rate")
        if arguments["channels"] != 1:
            raise error(-9998, "Invalid number of channels")

    fake.refuse = refuse
    with SpeakerSink() as sink:
        sink.open(MONO)
        assert sink.stats.device_rate == 24_000
    assert [(stream["rate"], stream["channels"]) for stream in fake.opened] == [(24_000, 1)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-9997, r"'front' supports none of the rates 48000, 44100, .* Hz in 16 bits"),
        (-9985, r"'front' is busy or was unplugged; quit the program that uses it"),
        (-9996, r"'front' is gone"),
        (-9999, r"'front' cannot be opened: .*Unanticipated"),
    ],
)
def test_device_that_cannot_be_opened_raises(cards: Install, code: int, message: str) -> None:
    fake = cards(card("front"))

    def refuse(_arguments: dict[str, Any]) -> None:
        raise error(code, "Unanticipated host error")

    fake.refuse = refuse
    sink = SpeakerSink()
    with pytest.raises(SinkError, match=message):
        sink.open(MONO)
    assert fake.users == 0
    fake.refuse = lambda _arguments: None
    sink.open(MONO)  # it can be tried again
    sink.close()


def test_unplugged_device_raises_until_it_is_back(cards: Install) -> None:
    fake = cards(card("front"))
    sink = SpeakerSink("front")
    sink.open(MONO)
    sink.write(noise(100))
    fake.unplug("front")
    with pytest.raises(SinkError, match="'front' stopped playing: it was unplugged"):
        sink.write(noise(48_000))
    with pytest.raises(SinkError, match="No output device"):
        sink.write(noise(100))
    fake.cards = [card("front")]
    fake.played.clear()
    clip = noise(1_000, seed=1)
    sink.write(clip)
    sink.drain()
    sink.close()
    assert np.array_equal(sounding(fake.samples("front")[:, 0]), to_int16(clip[:, None])[:, 0])
    assert fake.users == 0


def test_fallback_uses_the_default_device(cards: Install) -> None:
    fake = cards(card("front"), card("headset"))
    sink = make_sink("speaker:headset,default")
    assert isinstance(sink, SpeakerSink)
    sink.open(MONO)
    fake.unplug("headset")
    with pytest.raises(SinkError, match="'headset' stopped"):
        sink.write(noise(48_000))
    sink.write(noise(1_000))
    assert sink.device is not None
    assert sink.device.name == "front"
    sink.drain()
    sink.close()
    assert len(sounding(fake.samples("front")[:, 0])) == 1_000


def test_device_that_stops_calling_back_raises(cards: Install) -> None:
    fake = cards(card("front"))
    sink = SpeakerSink(stall_seconds=0.05)
    sink.open(MONO)
    stream = fake.streams[0]
    stream.is_active = lambda: True  # type: ignore[method-assign]
    stream.running = False
    with pytest.raises(SinkError, match=r"has played nothing for 0.05 s"):
        sink.write(noise(200_000))
    sink.stop()
    sink.close()


def test_stream_that_does_not_close_is_abandoned(
    cards: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portaudio_stream, "_CLOSE_SECONDS", 0.05)
    fake = cards(card("front"))
    sink = SpeakerSink("front")
    sink.open(MONO)
    release = threading.Event()
    stuck = fake.streams[0]
    closing = stuck.close
    stuck.close = lambda: (release.wait(60), closing())  # type: ignore[method-assign]
    fake.unplug("front")
    fake.cards = [card("front")]
    with pytest.raises(SinkError, match="stopped playing"):
        sink.write(noise(48_000))
    sink.write(noise(100))  # on a new stream
    assert fake.users == 2  # terminating PortAudio would wait for the stuck stream
    sink.close()
    assert fake.users == 1
    release.set()


def test_stop_ends_a_blocked_write_and_the_next_take_is_complete(cards: Install) -> None:
    fake = cards(card("front"))
    sink = SpeakerSink(stall_seconds=30)
    sink.open(MONO)
    hold = threading.Event()
    callback = fake.opened[0]["stream_callback"]

    def slow(*arguments: Any) -> Any:
        hold.wait(0.05)
        return callback(*arguments)

    fake.opened[0]["stream_callback"] = slow
    writer = threading.Thread(target=sink.write, args=(noise(480_000),))
    writer.start()
    while sink.stats.buffered_ms < 300:
        hold.wait(0.01)
    hold.set()
    sink.stop()
    writer.join(timeout=30)
    assert not writer.is_alive()
    assert sink.stats.buffered_ms == 0
    before = len(fake.samples("front"))
    clip = noise(2_000, seed=2)
    sink.write(clip)
    sink.drain()
    sink.close()
    tail = fake.samples("front")[before:, 0]
    assert np.array_equal(tail[tail != 0], to_int16(clip[:, None])[:, 0])


def test_100_opens_and_closes_leak_nothing(cards: Install) -> None:
    fake = cards(card("front"))
    before = threading.active_count()
    sink = SpeakerSink()
    for number in range(100):
        sink.open(MONO)
        sink.write(noise(50, number))
        sink.stop()
        sink.close()
    assert fake.users == 0
    assert threading.active_count() == before
    assert not any(stream.running for stream in fake.streams)


def test_closed_sink_raises(cards: Install) -> None:
    cards(card("front"))
    sink = SpeakerSink()
    with pytest.raises(SinkError, match="the default speaker is not open"):
        sink.write(noise(1))
    sink.open(MONO)
    with pytest.raises(SinkError, match="is already open"):
        sink.open(MONO)
    sink.close()
    sink.close()
    sink.stop()
    assert sink.stats.device_rate == 0


def test_lost_sound_is_counted_while_a_take_plays(cards: Install) -> None:
    fake = cards(card("front"))
    fake.flags = 4  # also in silence, in which nothing is lost
    sink = SpeakerSink()
    sink.open(MONO)
    until_rendered(sink, 48_000)
    assert sink.stats.lost == 0
    sink.write(noise(4_800))
    sink.drain()
    lost = sink.stats.lost
    assert 1 <= lost <= 10  # of the take's ten blocks
    fake.flags = 0
    sink.write(noise(4_800))
    sink.drain()
    sink.close()
    assert sink.stats.lost == lost  # also of a closed sink


def until_rendered(sink: SpeakerSink, more: int) -> None:
    """Waits until the fake card has requested further frames."""
    assert sink._stream is not None
    player = sink._stream.player
    wanted = player.rendered + more
    while player.rendered < wanted:
        threading.Event().wait(0.001)


# A server freezes the garbage collector, so its sink can live until the interpreter exits.
KEPT = """
import gc, sys
from rt_drama3.sinks import PcmFormat, SpeakerSink
from tests.sinks.doubles import FakePyAudio, card

sys.modules["pyaudio"] = FakePyAudio(card("front", rate=44_100))
sink = SpeakerSink("front")
sink.quality = "high"  # as the microphone's
sink.open(PcmFormat(48_000))
assert sink._resamplers
sink.close()
sink.itself = sink
gc.freeze()
"""


def test_process_that_keeps_a_closed_sink_exits_without_messages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
