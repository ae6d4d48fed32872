"""The page / and the example agent in a real browser, heard through a private sound card."""

from __future__ import annotations

import re
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rt_drama3.audio import read_audio
from tests.clients.web.chromium import Page, needs_chromium
from tests.clients.web.pages import serve_folder
from tests.clients.web.scripted import Talk, talking
from tests.server.tools import Place, serving
from tests.sinks.private_pulse import Daemon, Recorder, needs_pulse, sounding, wait_until
from tests.small import shared_drama

pytestmark = [needs_chromium, needs_pulse, pytest.mark.browser, pytest.mark.serial]

Browser = Callable[..., Page]
RATE = 44_100
WEB = Path(__file__).parents[3] / "clients" / "web"
SAID = "document.getElementById('said').textContent"
CAPTION = "document.getElementById('caption').textContent"
CAN_STOP = "document.getElementById('stop').getAttribute('aria-disabled') === 'false'"


def can_stop(page: Page) -> bool:
    return bool(page.run(CAN_STOP))


def write(page: Page, text: str) -> None:
    """Replaces the text, as a user would."""
    page.run("document.getElementById('text').select()")
    page.call("Input.insertText", text=text)
    if not text:
        page.run("document.execCommand('delete')")


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with talking(tmp_path / "server") as running:
        yield running


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
    assert not can_stop(page)
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
        assert not can_stop(page)
        assert page.run("document.activeElement.id") == "stop"  # the focus is where it was
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


@pytest.mark.parametrize("format", ["flac", "wav"])
def test_saved_file_has_its_true_length(
    browser: Browser, nano_place: Place, tmp_path: Path, format: str
) -> None:
    page = browser()
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(nano_place.url)
    page.run(f"document.getElementById('format').value = '{format}'")
    page.click("#save")
    page.until(f"/saved as speech.{format}/.test({SAID})")
    path = tmp_path / f"speech.{format}"
    wait_until(path.exists, "the file")  # it has its name when it is whole
    samples, rate = read_audio(path)
    assert f"{len(samples) / rate:.2f} s saved" in page.run(SAID)
    if format == "wav":
        with wave.open(str(path)) as file:
            assert file.getnframes() == len(samples)
        assert int.from_bytes(path.read_bytes()[4:8], "little") == path.stat().st_size - 8
    else:  # the last 36 bits of this field are the number of samples
        assert int.from_bytes(path.read_bytes()[18:26], "big") % 2**36 == len(samples)
    assert page.console == []


def page_without_its_server(browser: Browser, talk: Talk) -> Page:
    """A page whose server has left while it was heard."""
    page = browser(autoplay=False)
    page.open(talk.url)
    write(page, "The first.")
    page.click("#speak")
    page.until(f"{CAPTION} === 'The first.'")
    talk.drop()
    page.until(f"/the connection ended/.test({SAID})")
    return page


def test_stop_works_after_the_server_is_gone(card: Daemon, browser: Browser, talk: Talk) -> None:
    page = page_without_its_server(browser, talk)
    assert can_stop(page)  # what was received still sounds
    recorder = Recorder("card.monitor", RATE)
    recorder.wait_for(RATE // 4)
    page.click("#stop")
    page.until(f"!({CAN_STOP})")
    recorder.wait_for(RATE // 2)
    recorded = recorder.stop()
    assert recorded.any()
    assert not recorded[-RATE // 8 :].any()


def test_utterance_replaces_one_whose_server_is_gone(
    card: Daemon, browser: Browser, talk: Talk
) -> None:
    page = page_without_its_server(browser, talk)
    recorder = Recorder("card.monitor", RATE)
    recorder.wait_for(RATE // 4)
    page.run(
        "globalThis.seen = []; new MutationObserver(() => "
        f"seen.push({CAPTION})).observe(document.getElementById('caption'), {{ childList: true }})"
    )
    talk.level = -4_000
    write(page, "The second.")
    page.press("Enter", control=True)
    page.until(f"{CAPTION} === 'The second.'")
    recorder.wait_for(RATE // 2)
    page.press("Escape")
    page.until(f"!({CAN_STOP})")
    recorder.wait_for(RATE // 4)
    recorded = recorder.stop()
    second = int(np.argmax(recorded < 0))
    assert second > 0
    assert (recorded[:second] >= 0).all()
    assert (recorded[second:] <= 0).all()  # nothing of the first under it
    assert not recorded[-RATE // 8 :].any()
    assert page.run("seen") == ["", "The second."]


def test_only_the_last_of_quick_clicks_speaks(card: Daemon, browser: Browser, talk: Talk) -> None:
    page = browser(autoplay=False)
    page.open(talk.url)
    page.run(
        "for (const text of ['One.', 'Two.', 'Three.']) {"
        "  document.getElementById('text').value = text;"
        "  document.getElementById('speak').click();"
        "}",
        gesture=True,
    )
    page.until(f"{CAPTION} === 'Three.'")
    assert talk.asked == ["Three."]
    page.run("document.getElementById('speak').click(); document.getElementById('stop').click()")
    page.until(f"!({CAN_STOP})")
    assert talk.asked == ["Three."]


def test_missing_key_is_asked_for(card: Daemon, browser: Browser, tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path / "keys", api_keys=["right"]) as guarded:
        page = browser(autoplay=False)
        page.open(guarded.url)
        page.until(f"/requires an API key/.test({SAID})")  # before anything is asked for
        page.click("#speak")
        page.until(f"/requires an API key. Enter it in the field/.test({SAID})")
        page.until(f"!({CAN_STOP})")
        page.click("#key")
        page.call("Input.insertText", text="wrong")
        page.press("Enter")  # speaks as well
        page.until(f"/does not accept this API key/.test({SAID})")
        page.run("document.getElementById('key').select()")
        page.call("Input.insertText", text="right")
        page.press("Enter")
        page.until(f"/^first audio after/.test({SAID})")
        page.press("Escape")
        page.until(f"!({CAN_STOP})")
        guarded.until_free()


def test_text_without_words(card: Daemon, browser: Browser, nano_place: Place) -> None:
    page = browser(autoplay=False)
    page.open(nano_place.url)
    for text, answer in (
        ("", "Enter a text first."),
        (" \n ", "Enter a text first."),
        ("\N{GRINNING FACE}", "There are no words to speak in this text."),
    ):
        for button in ("#speak", "#save"):
            write(page, "Other text.")
            page.run("document.getElementById('said').textContent = ''")
            write(page, text)
            page.click(button)
            page.until(f"![ '', '...' ].includes({SAID})")
            assert page.run(SAID) == answer
            assert not can_stop(page)
    assert page.console == []


def test_text_survives_a_reload(browser: Browser, place: Place) -> None:
    page = browser()
    page.open(place.url)
    write(page, "A text of my own.")
    page.open(f"{place.url}/?again")
    assert page.run("document.getElementById('text').value") == "A text of my own."


def test_page_fits_a_small_and_dark_screen(browser: Browser, place: Place, tmp_path: Path) -> None:
    page = browser()
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=320,
        height=640,
        deviceScaleFactor=1,
        mobile=True,
    )
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", features=dark)
    page.open(place.url)
    for name in ("caption", "said"):
        page.run(f"document.getElementById('{name}').textContent = 'word'.repeat(100)")
    page.run("document.getElementById('voice').options[0].text = 'voice'.repeat(50)")
    page.picture(tmp_path / "small.png")
    assert page.run("document.documentElement.scrollWidth") == 320
    sizes = page.run(
        "[...document.querySelectorAll('button, input, select, textarea')].map((one) => {"
        "  const { width, height } = one.getBoundingClientRect();"
        "  return [one.id, width, height];"
        "})"
    )
    assert [size for size in sizes if min(size[1:]) < 44] == []
    for selector, pseudo in (("#key", "::placeholder"), ("#said", ""), ("#text", "")):
        assert contrast(page, selector, pseudo) >= 4.5, selector
    middles = page.run(
        "['voice', 'volume'].map((id) => [document.getElementById(id), "
        "document.getElementById(id).parentElement].map((one) => {"
        "  const { top, height } = one.getBoundingClientRect();"
        "  return top + height / 2;"
        "}))"
    )
    assert all(abs(one - label) <= 1 for one, label in middles)


def contrast(page: Page, selector: str, pseudo: str) -> float:
    """The contrast ratio of WCAG 2 between a text and what is behind it."""
    text, opacity, *backgrounds = page.run(
        "(() => {"
        f"  const element = document.querySelector('{selector}');"
        f"  const style = getComputedStyle(element, '{pseudo}' || null);"
        "  const found = [style.color, style.opacity];"
        "  for (let one = element; one; one = one.parentElement)"
        "    found.push(getComputedStyle(one).backgroundColor);"
        "  const canvas = document.body.appendChild(document.createElement('i'));"
        "  canvas.style.backgroundColor = 'Canvas';"
        "  return [...found, getComputedStyle(canvas).backgroundColor];"
        "})()"
    )
    colours = [[float(value) for value in re.findall(r"[\d.]+", one)] for one in backgrounds]
    behind = next(one for one in colours if len(one) == 3 or one[3] == 1)[:3]
    front = [float(value) for value in re.findall(r"[\d.]+", text)]
    share = float(opacity) * (front[3] if len(front) > 3 else 1.0)
    mixed = [share * one + (1 - share) * two for one, two in zip(front[:3], behind, strict=True)]
    light, dim = sorted((luminance(mixed), luminance(behind)), reverse=True)
    return (light + 0.05) / (dim + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [value / 255 for value in colour]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
