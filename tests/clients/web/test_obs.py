"""The page /obs in a real browser: what it plays is recorded and compared with what was spoken."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.clients.web.chromium import Page, needs_chromium
from tests.clients.web.pages import listening, only_here
from tests.server.tools import Client, Place, audio_of, serving
from tests.sinks.private_pulse import (
    RENDER_QUANTUM,
    Daemon,
    Recorder,
    needs_pulse,
    sounding,
    without_gaps,
)
from tests.small import shared_drama

pytestmark = [needs_chromium, needs_pulse, pytest.mark.browser, pytest.mark.serial]

Browser = Callable[..., Page]
RATE = 44_100  # of the model and of the card: no sample is touched on its way
FADE = 882  # samples of 20 ms


def speak(client: Client, text: str, seconds: float) -> NDArray[np.int16]:
    """Has a text spoken; the samples that its client got."""
    client.send("start", text=text, final=True, sample_rate=RATE, max_seconds=seconds, seed=3)
    got = client.take_until("done")
    return np.frombuffer(audio_of(got), "<i2")


def stopped(recorded: NDArray[np.int16], spoken: NDArray[np.int16]) -> int:
    """Checks that what was heard is the beginning of what was spoken and a fade of 20 ms.

    Returns:
        Samples that were heard, fade included.
    """
    spoken = spoken[np.nonzero(spoken)[0][0] :]
    heard = without_gaps(sounding(recorded), spoken)
    assert RATE // 10 < len(heard) <= len(spoken)
    spoken = spoken[: len(heard)]
    changed = np.nonzero(heard != spoken)[0]
    assert 0 < len(heard) - changed[0] <= FADE
    quieter = np.abs(heard[changed[0] :].astype(int)) <= np.abs(spoken[changed[0] :].astype(int))
    assert quieter.all()
    return len(heard)


def test_page_plays_what_was_spoken(
    card: Daemon, browser: Browser, place: Place, tmp_path: Path
) -> None:
    page = browser()
    listening(page, f"{place.url}/obs?rate={RATE}&delay=800")
    recorder = Recorder("card.monitor", RATE)
    with place.native() as client:
        first = speak(client, "This sentence is heard.", 1.5)
        second = speak(client, "So is that one.", 1.0)
    page.until("seen.length")
    page.picture(tmp_path / "obs.png", transparent=True)
    page.until("quiet")
    recorder.wait_for(RATE // 4)
    assert page.run("rtDrama3.player.stats.underruns") == 0
    wanted, other = sounding(first), sounding(second)
    both = np.concatenate([wanted, other])
    recorded = without_gaps(sounding(recorder.stop()), both)
    between = len(recorded) - len(both)
    assert np.array_equal(recorded[: len(wanted)], wanted)
    assert np.array_equal(recorded[-len(other) :], other)
    assert 0 <= between < RENDER_QUANTUM  # more is a gap, or the silent ends of the two
    assert page.run("seen.map(([text]) => text)") == ["This sentence is heard.", "So is that one."]
    only_here(page, place.port)


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_stop_fades(card: Daemon, browser: Browser, place: Place, how: str) -> None:
    page = browser()
    listening(page, f"{place.url}/obs?rate={RATE}&delay=800")
    recorder = Recorder("card.monitor", RATE)
    with place.native() as client:
        client.send("start", text="On and on.", final=True, sample_rate=RATE, max_seconds=60)
        got = client.take_until("audio")
        page.until("seen.length && rtDrama3.player.stats.tracks")
        while len(without_gaps(sounding(recorder.samples))) < RATE // 2:
            if got[-1]["type"] == "done":
                time.sleep(0.01)  # the page is slow; it has the whole minute still to play
            else:
                got.append(client.take())
        if how == "stop":
            assert place.post("/v1/stop", json={}).status_code == 200
        client.send("cancel")
        got += client.take_until("cancelled")
    page.until("quiet")
    recorder.wait_for(RATE // 4)
    heard = stopped(recorder.stop(), np.frombuffer(audio_of(got), "<i2"))
    assert heard < 30 * RATE
    assert page.run("rtDrama3.player.stats.tracks") == 0


def test_page_reconnects_after_losing_the_server(
    card: Daemon, browser: Browser, tmp_path: Path
) -> None:
    page = browser()
    with serving(shared_drama(), tmp_path / "one", listen=True) as first:
        listening(page, f"{first.url}/obs?rate={RATE}&delay=800")
        port = first.port
    page.until("rtDrama3.listener.state === 'waiting'")
    with serving(shared_drama(), tmp_path / "two", listen=True, port=port) as second:
        page.until("rtDrama3.listener.state === 'listening'")
        recorder = Recorder("card.monitor", RATE)
        with second.native() as client:
            spoken = speak(client, "Here again.", 1.0)
        page.until("quiet")
        recorder.wait_for(RATE // 4)
        expected = sounding(spoken)
        assert np.array_equal(without_gaps(sounding(recorder.stop()), expected), expected)


def test_click_is_required_without_autoplay(card: Daemon, browser: Browser, place: Place) -> None:
    page = browser(autoplay=False)
    page.open(f"{place.url}/obs")
    page.until("!document.getElementById('unblock').hidden")
    page.until("rtDrama3.listener.state === 'listening'")
    with place.native() as client:
        speak(client, "This is not heard.", 0.3)
    assert page.run("rtDrama3.player.stats.tracks") == 0  # old news is not kept for later
    page.click("#unblock")
    page.until("rtDrama3.player.state === 'running'")
    page.until("document.getElementById('unblock').hidden")


def test_key_in_the_fragment(browser: Browser, tmp_path: Path) -> None:
    key = "a key? 100% /+~"
    with serving(shared_drama(), tmp_path / "keys", listen=True, api_keys=[key]) as guarded:
        page = browser()
        page.open(f"{guarded.url}/obs#key=wrong")
        page.until("globalThis.rtDrama3?.listener.state === 'refused'")
        assert "key" in page.run("document.getElementById('notice').textContent")
        page.open("about:blank#")
        page.open(f"{guarded.url}/obs#key={quote(key)}")
        page.until("globalThis.rtDrama3?.listener.state === 'listening'")
        assert not [url for url in page.asked if "100" in url.partition("#")[0]]
