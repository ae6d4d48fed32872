import assert from "node:assert/strict";
import test from "node:test";

import { ConnectionLost } from "../src/errors.js";
import { Playback } from "../src/playback.js";

/** A player whose one track has played everything that was written, once it is ended or stopped. */
function fakePlayer() {
  const track = new EventTarget();
  let over;
  Object.assign(track, {
    written: 0,
    segments: [],
    finished: new Promise((resolve) => (over = resolve)),
    write: (pcm) => (track.written += pcm.length / 2),
    segment: (text, firstSample) => track.segments.push({ text, firstSample }),
    end: () => over({ samples: track.written, stopped: false, underruns: 0 }),
    stop: () => over({ samples: track.written, stopped: true, underruns: 0 }),
  });
  return { track: () => track };
}

function speechOf(events, error = null) {
  return {
    sampleRate: 8000,
    cancelled: 0,
    cancel() {
      this.cancelled += 1;
      return Promise.resolve({});
    },
    async *[Symbol.asyncIterator]() {
      yield* events;
      if (error) throw error;
    },
  };
}

const AUDIO = { type: "audio", audio: new Uint8Array(1600), firstSample: 0 };

test("after an error stop returns what was played, and finished rejects", async () => {
  for (const events of [[AUDIO], []]) {
    const playback = new Playback(fakePlayer(), speechOf(events, new ConnectionLost("it ended.")));
    await assert.rejects(playback.finished, ConnectionLost);
    for (let again = 0; again < 2; again++) {
      const heard = await playback.stop();
      assert.equal(heard.samples, events.length ? 800 : 0);
      assert.equal(heard.seconds, events.length ? 0.1 : 0);
    }
    await assert.rejects(playback.finished, ConnectionLost);
  }
});

test("a stop in the middle cancels and returns what was played", async () => {
  const speech = speechOf([AUDIO, AUDIO]);
  const playback = new Playback(fakePlayer(), speech);
  const heard = await playback.stop();
  assert.equal(heard.stopped, true);
  assert.equal(speech.cancelled, 1);
});

test("quiet is fulfilled when the last sample was played, also after an error", async () => {
  const { player, track } = soundingPlayer();
  const playback = new Playback(player, speechOf([AUDIO], new ConnectionLost("it ended.")));
  let quiet = false;
  playback.quiet.then(() => (quiet = true));
  await assert.rejects(playback.finished, ConnectionLost);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(quiet, false); // what was received still sounds
  await playback.stop();
  await playback.quiet;
  assert.equal(track.stops, 1);
  const silent = new Playback(fakePlayer(), speechOf([], new ConnectionLost("it ended.")));
  await silent.quiet; // without any audio there is nothing to wait for
  await new Playback(fakePlayer(), speechOf([AUDIO])).quiet;
});

test("there are no captions after a stop", async () => {
  const { player, track } = soundingPlayer();
  const playback = new Playback(player, speechOf([AUDIO, AUDIO]));
  const seen = [];
  for (const name of ["begin", "segment"]) playback.addEventListener(name, () => seen.push(name));
  await new Promise((resolve) => setImmediate(resolve));
  track.dispatchEvent(new Event("begin"));
  const stopping = playback.stop();
  track.dispatchEvent(Object.assign(new Event("segment"), { text: "Old.", firstSample: 0 }));
  await stopping;
  assert.deepEqual(seen, ["begin"]);
});

/** A player whose track sounds until it is stopped. */
function soundingPlayer() {
  const player = fakePlayer();
  const track = player.track();
  const { stop } = track;
  Object.assign(track, { stops: 0, end() {}, stop: () => (track.stops++, stop()) });
  return { player, track };
}
