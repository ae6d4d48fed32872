"""The player of clients/web in a real browser: resampling, irregular chunks, underruns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.clients.web.chromium import Page, needs_chromium
from tests.server.tools import Place
from tests.sinks.private_pulse import Daemon, Recorder, needs_pulse, sounding, without_gaps

pytestmark = [needs_chromium, needs_pulse, pytest.mark.browser, pytest.mark.serial]

Browser = Callable[..., Page]
RATE = 44_100
SETUP = """(async () => {
  globalThis.rt = await import("/web/client/index.js");
  globalThis.player = await rt.Player.open({ sampleRate: 44100, jitter: { firstMs: 300 } });
  await player.resume();
})()"""


@pytest.fixture
def page(card: Daemon, browser: Browser, place: Place) -> Page:
    opened = browser()
    opened.open(place.url)
    opened.run(SETUP)
    return opened


def test_other_rate_is_resampled_within_80_db(page: Page) -> None:
    recorder = Recorder("card.monitor", RATE)
    result = page.run(
        """(async () => {
          const tone = Float32Array.from({ length: 24000 },
            (_, n) => 0.5 * Math.sin(2 * Math.PI * 440 * n / 24000 + 0.3));
          const track = player.track({ sampleRate: 24000 });
          for (let at = 0, n = 0; at < tone.length; n++) {
            const size = [1, 441, 2048, 3, 4096][n % 5];
            track.write(tone.slice(at, at += size));
          }
          track.end();
          return track.finished;
        })()"""
    )
    recorder.wait_for(RATE // 4)
    recorded = without_gaps(sounding(recorder.stop())) / 32_768
    assert result == {"samples": 24_000, "stopped": False, "underruns": 0}
    assert abs(len(recorded) - RATE) <= 2
    middle = recorded[2_000:-2_000]
    phase = 2 * np.pi * 440 * np.arange(len(middle)) / RATE
    waves = np.stack([np.sin(phase), np.cos(phase)], 1)
    found, *_ = np.linalg.lstsq(waves, middle, rcond=None)
    assert abs(np.hypot(*found) - 0.5) < 1e-3
    error = middle - waves @ found
    assert 20 * np.log10(error.std() / middle.std()) < -80


def test_positions_segments_and_an_underrun(page: Page) -> None:
    result = page.run(
        """(async () => {
          const track = player.track();
          const log = [];
          for (const name of ["begin", "underrun", "end"]) {
            track.addEventListener(name, () => log.push(name));
          }
          track.addEventListener("segment", ({ text, firstSample }) =>
            log.push([text, track.heard >= firstSample]));
          const gap = new Promise((r) => track.addEventListener("underrun", r));
          track.segment("One.", 5000);
          track.segment("Two.", 5000 + 11025);
          track.write(new Int16Array(22050).fill(1000), 5000);
          await gap;
          log.push(track.heard);
          track.write(new Int16Array(4410).fill(1000));
          track.end();
          return { log, end: await track.finished, stats: player.stats };
        })()"""
    )
    first, *log = result["log"]
    assert first == "begin"
    assert log[:3] == [["One.", True], ["Two.", True], "underrun"] or log[:3] == [
        *(["One.", True], "underrun", 5_000 + 22_050),  # a slow machine looks seldom
    ]
    assert 5_000 + 22_050 in log
    assert log[-1] == "end"
    assert result["end"] == {"samples": 5_000 + 26_460, "stopped": False, "underruns": 1}
    assert result["stats"]["tracks"] == 0
    assert result["stats"]["underruns"] == 1


def test_many_utterances_leak_nothing(page: Page, place: Place) -> None:
    result = page.run(
        """(async () => {
          const client = new rt.Client();
          const ends = [];
          for (let n = 0; n < 20; n++) {
            const playback = rt.say(player, client, "Another one.", { maxSeconds: 0.2 });
            if (n % 2) {
              await new Promise((r) => playback.addEventListener("begin", r, { once: true }));
              playback.stop();
            }
            const { samples, stopped } = await playback.finished;
            ends.push(stopped ? "stopped" : samples);
          }
          return { ends, tracks: player.stats.tracks };
        })()"""
    )
    whole = result["ends"][0]
    assert whole >= 0.1 * RATE
    # One may have ended before it was stopped.
    assert all(end in (whole, "stopped") for end in result["ends"])
    assert result["ends"][::2] == [whole] * 10
    assert result["tracks"] == 0
    assert len([url for url in page.asked if "/v1/stream" in url]) == 1  # one connection for all
    place.until_free()


def test_full_track_is_dropped_and_reported(page: Page, place: Place) -> None:
    error = page.run(
        """(async () => {
          const errors = [];
          player.addEventListener("error", ({ error }) => errors.push([error.name, error.code]));
          const track = player.track();
          const minute = 60 * 44100;
          for (let n = 0; n < 11; n++) track.write(new Int16Array(minute));
          const { stopped } = await track.finished;
          return { errors, stopped };
        })()"""
    )
    assert error == {"errors": [["PlayerFull", "player_full"]], "stopped": True}


def test_blocked_autoplay_raises_and_stop_works(
    card: Daemon, browser: Browser, place: Place
) -> None:
    page = browser(autoplay=False)
    page.open(place.url)
    result = page.run(
        """(async () => {
          const rt = await import("/web/client/index.js");
          const player = await rt.Player.open();
          const error = await player.resume().catch((error) => error.name);
          const track = player.track();
          track.write(new Int16Array(48000));
          track.stop();
          return { error, state: player.state, end: await track.finished };
        })()"""
    )
    end = {"samples": 0, "stopped": True, "underruns": 0}
    assert result == {"error": "AutoplayBlocked", "state": "suspended", "end": end}


def test_errors_are_typed(page: Page, place: Place) -> None:
    script = """(async () => {
      const names = [];
      const trying = async (action) => {
        try { await action(); names.push("nothing"); } catch (e) { names.push([e.name, e.code]); }
      };
      const client = new rt.Client({ attempts: 1 });
      const read = async (speech) => { for await (const _ of speech); };
      await trying(() => read(client.speak("Hello.", { voice: "missing" })));
      await trying(() => read(client.speak("Hello.", { temperature: -1 })));
      const nowhere = new rt.Client({ server: "http://127.0.0.1:9", attempts: 1 });
      await trying(() => read(nowhere.speak("a")));
      await trying(() => new rt.Client({ server: "ftp://a" }));
      await trying(() => player.track({ sampleRate: 1 }));
      await player.close();
      await trying(() => player.track());
      return names;
    })()"""
    assert page.run(script) == [
        ["UnknownVoice", "unknown_voice"],
        ["BadRequest", "bad_field"],
        ["ConnectFailed", "connect_failed"],
        ["UsageError", "usage"],
        ["UsageError", "usage"],
        ["ClientClosed", "closed"],
    ]
