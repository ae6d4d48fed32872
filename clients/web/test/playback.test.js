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
