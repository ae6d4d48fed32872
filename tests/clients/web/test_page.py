"""The page / and the example agent in a real browser, heard through a private sound card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rt_drama3.audio import read_audio
from tests.clients.web.chromium import Page, needs_chromium
from tests.clients.web.pages import serve_folder
from tests.server.tools import Place
from tests.sinks.private_pulse import Daemon, Recorder, needs_pulse, sounding, wait_until

pytestmark = [needs_chromium, needs_pulse, pytest.mark.browser, pytest.mark.serial]

Browser = Callable[..., Page]
RATE = 44_100
WEB = Path(__file__).parents[3] / "clients" / "web"


def test_sentence_is_spoken_with_its_caption(
    card: Daemon, browser: Browser, nano_place: Place, tmp_path: Path
) -> None:
    page = browser(autoplay=False)  # the click is what lets it play
    page.open(nano_place.url)
    recorder = Recorder("card.monitor", RATE)
    page.run("document.getElementById('text').value = 'A sentence for the page.'")
    page.click("#speak")
    page.until("document.getElementById('caption').textContent === 'A sentence for the page.'")
    page.picture(tmp_path / "page.png")
    page.until("/ s heard/.test(document.getElementById('said').textContent)")
    said = page.run("document.getElementById('said').textContent")
    assert said.startswith("first audio after ")
    seconds = float(said.split("; ")[1].split(" s ")[0])
    recorder.wait_for(RATE // 4)
    recorded = sounding(recorder.stop())
    assert 0.5 < seconds < 6
    assert len(recorded) / RATE > seconds - 0.2  # the voice itself begins and ends quietly
    assert np.sqrt(np.mean((recorded / 32_768) ** 2)) > 0.005
    assert page.run("document.getElementById('stop').disabled") is True
    assert page.console == []


def test_stop_button_fades(card: Daemon, browser: Browser, place: Place) -> None:
    page = browser(autoplay=False)
    page.open(place.url)
    said = "gaps"
    for _ in range(8):  # where a busy machine let it run dry, there may be nothing to fade
        recorder = Recorder("card.monitor", RATE)
        page.click("#speak")  # this voice never ends by itself
        page.until("document.getElementById('said').textContent.startsWith('first')")
        page.click("#stop")
        page.until("/then stopped/.test(document.getElementById('said').textContent)")
        place.until_free()  # the server received the cancel
        recorder.wait_for(RATE // 4)
        recorded = recorder.stop()
        said = page.run("document.getElementById('said').textContent")
        assert page.run("document.getElementById('stop').disabled") is True
        if "gaps" not in said:
            break
    assert "gaps" not in said, "this machine is too slow"
    assert not recorded[-RATE // 8 :].any()  # silent since
    heard = np.abs(sounding(recorded).astype(float))
    assert heard[-44:].mean() < 0.2 * heard[:-882].mean()  # of the fade's 882 samples, the last
    assert page.console == []


def test_example_agent_is_interrupted_and_answers_again(
    card: Daemon, browser: Browser, nano_place: Place
) -> None:
    with serve_folder(WEB) as address:
        page = browser(autoplay=False)
        page.open(f"{address}/examples/index.html?server={nano_place.url}")
        page.click("#ask")
        page.until("/Good question/.test(document.getElementById('talk').textContent)")
        page.click("#interrupt")
        page.until("/interrupted after/.test(document.getElementById('talk').textContent)")
        page.until("/Of course/.test(document.getElementById('talk').textContent)")
        talk = page.run("document.getElementById('talk').innerText")
        assert "parcel" not in talk  # what was not heard is not written
        assert [line.split(":")[0] for line in talk.split("\n") if line] == [
            *("You", "Agent", "You", "Agent"),
        ]
        page.click("#interrupt")
        assert page.console == []
        page.open("about:blank#")  # leaving ends the third answer
        nano_place.until_free()


def test_file_is_saved(browser: Browser, nano_place: Place, tmp_path: Path) -> None:
    page = browser()
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(nano_place.url)
    page.run("document.getElementById('format').value = 'flac'")
    page.click("#save")
    page.until("/saved as speech.flac/.test(document.getElementById('said').textContent)")
    said = page.run("document.getElementById('said').textContent")
    wait_until((tmp_path / "speech.flac").exists, "the file")  # it has its name when it is whole
    samples, rate = read_audio(tmp_path / "speech.flac")
    assert f"{len(samples) / rate:.2f} s saved" in said
    assert page.console == []
