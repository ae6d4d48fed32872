"""The virtual microphone and the speaker against a real PulseAudio: recordings are compared."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rt_drama3.audio import StreamResampler, read_audio, resample
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import (
    MicSink,
    Mixer,
    PcmFormat,
    SpeakerSink,
    Tee,
    WavSink,
    device_sink,
    pulse,
    virtual_mic,
)
from rt_drama3.sinks import pactl as control
from rt_drama3.sinks.pcm_format import to_int16
from rt_drama3.sinks.prebuffer import Prebuffer
from rt_drama3_client.speaker import Speaker
from tests.sinks.private_pulse import (
    SECONDS,
    Daemon,
    Recorder,
    daemon,
    needs_pulse,
    sounding,
    wait_until,
    without_gaps,
)

pytestmark = [
    needs_pulse,
    pytest.mark.serial,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
]


def whole_take(milliseconds: float = 3_000.0) -> Prebuffer:
    """Starts when everything was written, so that a slow machine causes no gap."""
    return Prebuffer(least_ms=milliseconds, most_ms=milliseconds, first_ms=milliseconds)


def patient_mic(rate: int = 48_000) -> MicSink:
    return MicSink(
        rate=rate,
        server_ms=1_000,
        buffer_ms=6_000,
        stall_seconds=SECONDS,
        prebuffer=whole_take(),
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with daemon(monkeypatch) as running:
        yield running


def noise(count: int) -> NDArray[np.float32]:
    values = np.random.default_rng(5).uniform(-0.5, 0.5, count)
    values[np.abs(values) < 1e-3] = 0.25  # a zero would hide where the take begins
    return values.astype(np.float32)


def tone(rate: int, seconds: float) -> NDArray[np.float32]:
    # With this phase neither end is zero.
    phase = 2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate + 0.3
    return (0.5 * np.sin(phase)).astype(np.float32)


def patient_speaker(kind: str) -> SpeakerSink:
    """A speaker of the server itself, or of PortAudio through ALSA's plugin for it."""
    if kind == "plugin":
        pytest.importorskip("pyaudio")
    return SpeakerSink(
        "puls" if kind == "plugin" else None,  # part of the plugin's name is not the server's
        block_ms=150,
        server_ms=1_000,
        buffer_ms=6_000,
        stall_seconds=SECONDS,
        prebuffer=whole_take(),
    )


def play_in_blocks(sink: MicSink | SpeakerSink | Tee, clip: NDArray[np.float32]) -> None:
    at = 0
    for size in [1, 441, 2_048, 3, 7, 4_096, 100, 9_999] * len(clip):
        if at >= len(clip):
            return
        sink.write(clip[at : at + size])
        at += size


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_microphone_and_wav_get_the_same_samples(server: Daemon, tmp_path: Path, rate: int) -> None:
    clip = noise(rate)
    mic = patient_mic(rate)
    sink = Tee([mic, WavSink(tmp_path / "take.wav")])
    sink.open(PcmFormat(rate, encoding="f32le"))
    recorder = Recorder("rt-drama3", rate)
    play_in_blocks(sink, clip)
    sink.drain()
    recorder.wait_for(rate // 4)
    recorded = sounding(recorder.stop())
    underruns = mic.stats.underruns
    sink.close()
    wav, wav_rate = read_audio(tmp_path / "take.wav")
    assert wav_rate == rate
    assert underruns == 0
    assert np.array_equal(recorded, to_int16(wav[:, None])[:, 0])
    assert np.array_equal(recorded[: rate // 20], to_int16(clip[: rate // 20, None])[:, 0])
    assert np.array_equal(recorded[-rate // 20 :], to_int16(clip[-rate // 20 :, None])[:, 0])


def test_resampled_microphone_matches_the_wav_within_80_db(server: Daemon, tmp_path: Path) -> None:
    clip = tone(44_100, 1.0)
    with Tee([patient_mic(), WavSink(tmp_path / "take.wav")]) as sink:
        sink.open(PcmFormat(44_100, encoding="f32le"))
        assert sink.stats.device_rate == 48_000
        recorder = Recorder("rt-drama3", 48_000)
        play_in_blocks(sink, clip)
        sink.drain()
        recorder.wait_for(12_000)
    recorded = recorder.stop() / 32_768
    wav, _ = read_audio(tmp_path / "take.wav")
    expected = resample(wav, 44_100, 48_000)
    begin = int(np.argmax(recorded != 0)) - int(np.argmax(np.abs(expected) > 0.5 / 32_768))
    take = recorded[begin : begin + len(expected)]
    assert not recorded[begin + len(expected) :].any()
    # Not at the very ends, where the clip jumps and every filter rings in its own way.
    error = np.abs(take - expected)[100:-100].max()
    assert 20 * np.log10(error) < -80
    assert np.abs(take - expected).max() < 0.05


@pytest.mark.parametrize("kind", ["mic", "server", "plugin"])
def test_tone_in_irregular_blocks_arrives_complete(server: Daemon, kind: str) -> None:
    rate = 44_100
    clip = tone(rate, 1.5)
    mic = kind == "mic"
    sink: MicSink | SpeakerSink = patient_mic(rate) if mic else patient_speaker(kind)
    source = "rt-drama3" if mic else "card.monitor"
    sink.open(PcmFormat(rate, encoding="f32le"))
    recorder = Recorder(source, rate)
    play_in_blocks(sink, clip)
    sink.drain()
    recorder.wait_for(rate // 4)
    expected = to_int16(clip[:, None])[:, 0]
    recorded = sounding(recorder.stop())
    if kind == "plugin":  # PortAudio does not report what ALSA's plugin had to insert
        recorded = without_gaps(recorded, expected)
    assert sink.stats.underruns == 0
    sink.close()
    assert np.array_equal(recorded, expected)


def test_stop_overwrites_the_servers_buffer_with_a_fade(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "_MARGIN_MS", 150.0)  # for a busy machine
    rate = 48_000
    loud = np.full(3 * rate, 0.5, np.float32)
    sink = patient_mic()
    sink.open(PcmFormat(rate, encoding="f32le"))
    recorder = Recorder("rt-drama3", rate)
    sink.write(loud)
    sink.finish()
    wait_until(lambda: np.count_nonzero(recorder.samples) > rate // 10, "sound")
    sink.stop(fade_ms=20)
    recorder.wait_for(rate)
    second = noise(4_000)
    sink.write(second)
    sink.drain()
    recorder.wait_for(rate // 2)
    sink.close()
    recorded = recorder.stop()
    begin = int(np.argmax(recorded != 0))
    first = recorded[begin : begin + int(np.argmax(recorded[begin:] == 0))].astype(int)
    faded = first[first < 16_384]
    assert len(first) < 3 * rate  # it did not play to its end, although all of it was taken
    assert 900 <= len(faded) <= 960  # 20 ms, of which the last samples round to nothing
    assert (np.diff(faded) <= 0).all()
    assert np.abs(np.diff(first)).max() <= 20  # no click
    rest = recorded[begin + len(first) :]
    assert np.array_equal(sounding(rest), to_int16(second[:, None])[:, 0])


def test_queue_into_the_microphone_loses_nothing_and_stops(server: Daemon) -> None:
    rate = 48_000
    clips = [noise(9_600 + number) for number in range(3)]
    with Mixer(MicSink(stall_seconds=SECONDS), "queue", rate=rate) as mixer:
        recorder = Recorder("rt-drama3", rate)
        inputs = [mixer.add(PcmFormat(rate)) for _ in clips]
        for entry, clip in zip(inputs, clips, strict=True):
            entry.write(clip)
            entry.finish()
        for entry in inputs:
            entry.drain()
        recorder.wait_for(rate // 2)
        heard = recorder.samples
        endless = mixer.add(PcmFormat(rate))
        endless.write(noise(rate))
        size = len(heard)
        wait_until(lambda: np.count_nonzero(recorder.samples[size:]) > 100, "the endless one")
        mixer.stop()
        endless.write(noise(10 * rate))  # dropped
        recorder.wait_for(rate // 2)
        quiet = len(recorder.samples)
        recorder.wait_for(rate // 4)
        assert not recorder.samples[quiet:].any()
    recorder.stop()
    expected = to_int16(np.concatenate(clips)[:, None])[:, 0]
    # A busy machine may cause gaps, since little is buffered, but no sample is lost.
    assert np.array_equal(heard[heard != 0], expected)


def test_100_opens_and_closes_leak_nothing(server: Daemon) -> None:
    threads = threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    modules = control.modules()
    keeper = virtual_mic.create(keep=True)  # so that the cycles do not wait for pactl
    sink = MicSink(stall_seconds=SECONDS)
    for number in range(100):
        sink.open(PcmFormat(48_000, encoding="f32le"))
        sink.write(noise(480 + number))
        sink.stop(fade_ms=0)
        sink.close()
    (playback,) = [found for found in control.sinks() if found.name == keeper.sink]
    wait_until(lambda: control.players_of(playback.index) == 0, "the streams to go")
    virtual_mic.remove()
    assert control.modules() == modules
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= files


@pytest.mark.parametrize("kind", ["mic", "server", "plugin"])
def test_dead_daemon_raises_until_it_is_back(
    server: Daemon, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_sink, "_RETRY_SECONDS", 0.0)
    if kind == "plugin":
        pytest.importorskip("pyaudio")
        gone = "stopped playing|played nothing"
        # Which one depends on whether the old stream could be closed.
        none = "No output device|No .* matches|cannot be opened|is busy|is gone"
        sink: MicSink | SpeakerSink = SpeakerSink("puls", stall_seconds=5)
    elif kind == "server":
        gone, none = "sound server exited, or removed its output", "No sound server responds"
        sink = SpeakerSink(stall_seconds=SECONDS)
    else:
        gone, none = "sound server", "No sound server responds: start PulseAudio"
        sink = MicSink(stall_seconds=SECONDS)
    sink.open(PcmFormat(44_100, encoding="f32le"))
    sink.write(tone(44_100, 0.2))
    server.kill()
    with pytest.raises(SinkError, match=gone):
        sink.write(tone(44_100, 5.0))
    with pytest.raises(SinkError, match=none):
        sink.write(tone(44_100, 0.1))
    sink.stop()
    server.start()
    sink.write(tone(44_100, 0.2))
    sink.drain()
    sink.close()


@pytest.mark.parametrize("kind", ["server", "plugin"])
def test_reader_with_a_low_latency_hears_every_sample(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clip = noise(44_100)
    resampler = StreamResampler(44_100, 48_000)
    whole = np.concatenate([resampler.push(clip), resampler.flush()])
    expected = to_int16(whole[:, None])[:, 0]
    if kind == "plugin":
        pytest.importorskip("pyaudio")
    with daemon(monkeypatch, rate=48_000, rewinds=True):
        recorder = Recorder("card.monitor", 48_000, latency_ms=10)
        for _ in range(3):
            wanted = "puls" if kind == "plugin" else None
            sink = SpeakerSink(wanted, server_ms=400, stall_seconds=SECONDS)
            size = len(recorder.samples)
            sink.open(PcmFormat(44_100, encoding="f32le"))
            for at in range(0, len(clip), 2_048):
                sink.write(clip[at : at + 2_048])
            sink.drain()
            recorder.wait_for(12_000)
            sink.close()
            recorded = recorder.samples[size:]
            if kind == "server":
                assert sink.stats.lost == 0
                assert np.array_equal(recorded[recorded != 0], expected[expected != 0])
            else:  # the plugin resamples, and may lose something, but not without a word
                lacking = np.count_nonzero(expected) - np.count_nonzero(recorded)
                assert lacking < 480 or sink.stats.lost > 0
        recorder.stop()


def test_the_clients_speaker_plays_to_the_last_sample(server: Daemon) -> None:
    pytest.importorskip("pyaudio")
    rate = 44_100
    expected = to_int16(tone(rate, 1.0)[:, None])[:, 0]
    recorder = Recorder("card.monitor", rate)
    with Speaker(rate) as speaker:
        for at in range(0, len(expected), 2_048):
            speaker.write(expected[at : at + 2_048].tobytes())
    recorder.wait_for(rate // 4)
    recorded = sounding(recorder.stop())
    assert np.array_equal(recorded[-rate // 10 :], expected[-rate // 10 :])


def test_server_without_a_sink_of_that_name_raises(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_SINK", "missing")
    with pytest.raises(SinkError, match=r"no sink 'missing'; PULSE_SINK names it"):
        SpeakerSink().open(PcmFormat(48_000))


def test_stop_of_the_speaker_overwrites_what_the_server_holds(server: Daemon) -> None:
    rate = 44_100
    sink = patient_speaker("server")
    sink.open(PcmFormat(rate, encoding="f32le"))
    recorder = Recorder("card.monitor", rate)
    sink.write(np.full(3 * rate, 0.5, np.float32))
    sink.finish()
    wait_until(lambda: np.count_nonzero(recorder.samples) > rate // 10, "sound")
    sink.stop(fade_ms=20)
    recorder.wait_for(rate)
    sink.close()
    recorded = sounding(recorder.stop())
    assert len(recorded) < 2 * rate  # of three seconds that were taken


def test_removed_microphone_is_created_again(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_sink, "_RETRY_SECONDS", 0.0)
    with MicSink(stall_seconds=SECONDS) as sink:
        sink.open(PcmFormat(48_000, encoding="f32le"))
        virtual_mic.remove()
        with pytest.raises(SinkError, match="exited, or removed the virtual microphone"):
            sink.write(noise(480_000))
        sink.write(noise(480))
        assert [mic.name for mic in virtual_mic.existing()] == ["rt-drama3"]
    assert virtual_mic.existing() == []


def test_create_is_idempotent_and_remove_is_complete(server: Daemon) -> None:
    before = control.modules()
    mic = virtual_mic.create()
    assert virtual_mic.create() == mic
    assert virtual_mic.existing() == [mic]
    (source,) = [found for found in control.sources() if found.name == "rt-drama3"]
    assert (source.rate, source.channels, source.encoding) == (48_000, 1, "s16le")
    assert mic.alive
    assert virtual_mic.remove() == [mic]
    assert virtual_mic.remove() == []
    assert control.modules() == before


def test_kept_microphone_outlives_its_users(server: Daemon) -> None:
    mic = virtual_mic.create("studio", 44_100, keep=True)
    with MicSink("studio", stall_seconds=SECONDS) as sink:
        sink.open(PcmFormat(48_000))
        assert sink.stats.device_rate == 44_100  # the microphone's own
    virtual_mic.release(mic)
    assert virtual_mic.existing() == [mic]
    virtual_mic.remove("studio")


def test_microphone_in_use_is_not_removed(server: Daemon) -> None:
    one, two = MicSink(stall_seconds=SECONDS), MicSink(stall_seconds=SECONDS)
    one.open(PcmFormat(48_000))
    two.open(PcmFormat(48_000))
    one.close()
    assert len(virtual_mic.existing()) == 1
    two.close()
    assert virtual_mic.existing() == []


def test_microphone_of_a_dead_process_is_reused_or_replaced(server: Daemon) -> None:
    program = (
        "import os, sys\nfrom rt_drama3.sinks import virtual_mic\n"
        "virtual_mic.create('left', int(sys.argv[1]))\nos._exit(1)\n"
    )
    for rate in ("48000", "16000"):
        subprocess.run([sys.executable, "-c", program, rate], timeout=2 * SECONDS)
        (left,) = virtual_mic.existing()
        assert not left.alive
        with MicSink("left", stall_seconds=SECONDS) as sink:
            sink.open(PcmFormat(48_000))
            assert sink.stats.device_rate == 48_000
            assert sink.mic is not None
            assert (sink.mic.modules == left.modules) == (rate == "48000")
        assert virtual_mic.existing() == []


def test_incomplete_microphone_is_replaced(server: Daemon) -> None:
    mic = virtual_mic.create()
    control.unload_module(mic.modules[0])
    (half,) = virtual_mic.existing()
    assert (half.name, half.complete) == ("rt-drama3", False)
    assert virtual_mic.create().complete
    assert len(virtual_mic.existing()) == 1


def test_invalid_or_conflicting_names_and_rates_raise(server: Daemon) -> None:
    with pytest.raises(RequestError, match="Invalid microphone name 'a b'"):
        virtual_mic.create("a b")
    with pytest.raises(RequestError, match="rate of the microphone is 1 Hz"):
        virtual_mic.create(rate=1)
    with pytest.raises(SinkError, match=r"another source named 'card\.monitor'"):
        virtual_mic.create("card.monitor")
    virtual_mic.create(rate=16_000, keep=True)
    with pytest.raises(SinkError, match=r"'rt-drama3' exists at 16000 Hz and is in use"):
        virtual_mic.create(rate=48_000)


def test_missing_daemon_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PULSE_SERVER", f"unix:{tmp_path}/missing")
    with pytest.raises(SinkError, match="No sound server responds: start PulseAudio"):
        MicSink().open(PcmFormat(48_000))


def test_missing_pactl_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SinkError, match="needs pactl, which is not installed"):
        virtual_mic.create()


def test_server_name_and_version_are_returned(server: Daemon) -> None:
    assert control.server().startswith("pulseaudio")
