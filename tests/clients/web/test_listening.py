"""The page /obs against a scripted server: captions, order, mixing, late and broken messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.clients.web.chromium import Page, needs_chromium
from tests.clients.web.pages import listening, only_here, read_picture
from tests.clients.web.scripted import Script, scripted
from tests.sinks.private_pulse import Daemon, Recorder, needs_pulse, sounding, without_gaps

pytestmark = [needs_chromium, needs_pulse, pytest.mark.browser, pytest.mark.serial]

Browser = Callable[..., Page]
RATE = 44_100


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    with scripted(tmp_path / "server") as running:
        yield running


def noise(count: int, seed: int = 5) -> NDArray[np.int16]:
    values = np.random.default_rng(seed).integers(-9_000, 9_000, count)
    values[np.abs(values) < 100] = 5_000  # a silent sample would hide where it begins
    return values.astype(np.int16)


def heard(recorder: Recorder, page: Page) -> NDArray[np.int16]:
    """Returns what was recorded until the page was quiet, without gaps that it did not cause."""
    page.until("quiet")
    recorder.wait_for(RATE // 4)
    assert page.run("rtDrama3.player.stats.underruns") == 0
    return without_gaps(sounding(recorder.stop()))


def test_irregular_chunks_from_the_middle_of_an_utterance(
    card: Daemon, browser: Browser, script: Script
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&delay=300")
    assert script.asked == [{"sample_rate": str(RATE)}]
    recorder = Recorder("card.monitor", RATE)
    sound = noise(RATE)
    script.begin("a")
    script.segment("a", "What is said.", 0)
    script.audio("a", sound, first=5_001, sizes=(1, 441, 2_048, 3, 7, 30_000))
    script.end("a", 5_001 + len(sound))
    assert np.array_equal(heard(recorder, page), sound)
    assert page.run("seen") == [["What is said.", 0, "What is said."]]
    only_here(page, script.port)


def test_caption_matches_what_is_heard(
    card: Daemon, browser: Browser, script: Script, tmp_path: Path
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&size=64&colour=gold&position=top&delay=300")
    page.run(
        "globalThis.when = [];"
        "rtDrama3.listener.addEventListener('segment', () => when.push(rtDrama3.player.heardFrame))"
    )
    recorder = Recorder("card.monitor", RATE)
    texts = ["The first sentence.", "<img src=x onerror=alert(1)> is the second."]
    starts = [0, 3 * RATE // 2]
    sound = noise(5 * RATE // 2)
    script.begin("a")
    for text, start in zip(texts, starts, strict=True):  # long before they are heard
        script.segment("a", text, start)
    script.audio("a", sound)
    script.end("a", len(sound))
    page.until("seen.length > 1")
    by_then = len(sounding(recorder.samples))  # before the picture, which takes its time
    page.picture(tmp_path / "caption.png", transparent=True)
    assert np.array_equal(heard(recorder, page), sound)
    assert page.run("seen") == [[text, at, text] for text, at in zip(texts, starts, strict=True)]
    slack = RATE // 4  # that this machine may be late, or the recorder behind the card
    assert abs(np.diff(page.run("when"))[0] - starts[1]) < slack
    assert starts[1] - slack < by_then
    assert page.run("document.querySelector('img')") is None
    style = "getComputedStyle(document.getElementById('caption'))"
    assert page.run(f"[{style}.color, {style}.fontSize]") == ["rgb(255, 215, 0)", "64px"]
    picture = read_picture(tmp_path / "caption.png")
    assert (picture[-250:, :, 3] == 0).all()  # nothing but the caption, which is at the top
    assert picture[:250, :, 3].any()
    page.until("document.getElementById('caption').hidden")
    only_here(page, script.port)


def test_queue_plays_one_after_the_other(card: Daemon, browser: Browser, script: Script) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&mode=queue&delay=300")
    recorder = Recorder("card.monitor", RATE)
    sounds = {name: noise(RATE // 2, seed) for seed, name in enumerate("abc")}
    for name, sound in sounds.items():
        script.begin(name)
        script.segment(name, f"This is {name}.", 0)
        script.audio(name, sound)
        script.end(name, len(sound))
    page.until("seen.length === 3")
    recorded = heard(recorder, page)
    recorded = recorded[recorded != 0]  # less than a render quantum may lie between two of them
    assert np.array_equal(recorded, np.concatenate(list(sounds.values())))
    assert [text for text, *_ in page.run("seen")] == ["This is a.", "This is b.", "This is c."]


def test_mix_plays_two_concurrently(card: Daemon, browser: Browser, script: Script) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&mode=mix&captions=0&delay=500")
    recorder = Recorder("card.monitor", RATE)
    a, b = (noise(RATE, seed) for seed in (1, 2))
    script.begin("a")
    script.begin("b")
    script.begin("c", after="a")
    for name, sound in (("a", a), ("b", b), ("c", a)):
        script.segment(name, "This is not read.", 0)
        script.audio(name, sound)
        script.end(name, len(sound))
    recorded = heard(recorder, page).astype(int)
    rest = recorded.copy()
    rest[:RATE] -= a
    start = int(np.nonzero(rest)[0][0])
    assert start < RATE // 2  # b began soon after a
    rest[start : start + RATE] -= b
    start = int(np.nonzero(rest)[0][0])
    assert RATE <= start <= RATE + 128  # and c when a was over
    assert np.array_equal(rest[start:], a[: len(rest) - start])
    assert page.run("document.getElementById('caption').hidden") is True


@pytest.mark.parametrize("how", ["stop", "cancelled behind the end"])
def test_stop_fades_and_drops_the_rest(
    card: Daemon, browser: Browser, script: Script, how: str
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&delay=300")
    recorder = Recorder("card.monitor", RATE)
    sound = noise(20 * RATE)
    script.begin("a")
    script.segment("a", "A long one.", 0)
    script.audio("a", sound)
    script.end("a", len(sound))
    page.until("seen.length")
    if how == "stop":
        script.say("stop", fade_ms=20)
    script.end("a", len(sound), cancelled=True)
    recorded = heard(recorder, page)
    assert len(recorded) < 15 * RATE
    faded = np.nonzero(recorded != sound[: len(recorded)])[0]
    assert 0 < len(recorded) - faded[0] <= 882
    gain = recorded[faded[0] :] / sound[faded[0] : len(recorded)]
    assert (np.diff(gain) < 0.05).all()  # down, and rounded at its end
    assert gain[0] > 0.95 and gain[-1] < 0.05  # noqa: PT018


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_speech_of_a_suspension_is_not_heard_afterwards(
    card: Daemon, browser: Browser, script: Script
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&late=1000")
    recorder = Recorder("card.monitor", RATE)
    with page.suspended():
        for name in "abc":  # they are over long before the page continues
            script.begin(name)
            script.segment(name, f"This is {name}.", 0)
            script.audio(name, noise(RATE // 2))
            script.end(name, RATE // 2)
        recorder.wait_for(3 * RATE)
    page.until("quiet")
    fresh = noise(RATE // 2, seed=9)
    script.begin("d")
    script.segment("d", "This is d.", 0)
    script.audio("d", fresh)
    script.end("d", len(fresh))
    page.until("seen.length")
    page.until("rtDrama3.player.stats.tracks === 0")
    recorder.wait_for(RATE // 4)
    assert np.array_equal(without_gaps(sounding(recorder.stop())), fresh)
    assert [text for text, *_ in page.run("seen")] == ["This is d."]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_speech_around_a_suspension_continues_at_the_live_edge(
    card: Daemon, browser: Browser, script: Script
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}&late=500")
    recorder = Recorder("card.monitor", RATE)
    sound = noise(6 * RATE)
    script.begin("a")
    script.segment("a", "A long one.", 0)
    script.audio("a", sound)
    script.end("a", len(sound))
    page.until("seen.length")
    with page.suspended():
        recorder.wait_for(2 * RATE)
    page.until("quiet")
    recorder.wait_for(RATE // 4)
    recorded = without_gaps(sounding(recorder.stop()))
    assert len(recorded) < len(sound) - RATE  # two seconds are over, apart from the device's buffer
    assert np.array_equal(recorded[-RATE:], sound[-RATE:])
    assert page.run("rtDrama3.player.stats.tracks") == 0


def test_invalid_settings_are_ignored(card: Daemon, browser: Browser, script: Script) -> None:
    page = browser()
    nonsense = "size=big&position=left&colour=red;}&volume=99&rate=1234&mode=x&delay=-5&captions="
    listening(page, f"{script.url}/obs?{nonsense}")
    assert script.asked == [{"sample_rate": "48000"}]
    style = "getComputedStyle(document.getElementById('caption'))"
    assert page.run(f"[{style}.color, {style}.fontSize]") == ["rgb(255, 255, 255)", "48px"]
    assert page.run("document.getElementById('caption').className") == "bottom"
    assert page.run("[rtDrama3.player.volume, rtDrama3.player.delayMs]") == [4, 0]


def test_invalid_messages_end_the_connection_and_it_reconnects(
    card: Daemon, browser: Browser, script: Script
) -> None:
    page = browser()
    listening(page, f"{script.url}/obs?rate={RATE}")
    for count, data in enumerate((b"\xc1", b"\x81\xa4type\xc0", b"\x93\x01\x02\x03"), 1):
        script.raw(data)
        page.until(f"rtDrama3.listener.error?.code === 'bad_server_message' && {count}")
        page.until("rtDrama3.listener.state !== 'listening'")
        page.until("rtDrama3.listener.state === 'listening'")
    script.audio("unknown", noise(100))  # nothing that the page has to mind
    script.end("unknown", 100)
    script.say("a newer message", stream="unknown")
    script.begin("a")
    script.audio("a", noise(4_410))
    script.end("a", 4_410)
    page.until("quiet")
    assert page.run("rtDrama3.listener.state") == "listening"
