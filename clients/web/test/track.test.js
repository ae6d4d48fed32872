import assert from "node:assert/strict";
import test from "node:test";

import { UsageError } from "../src/errors.js";
import { SharedJitter } from "../src/jitter.js";
import { Track } from "../src/track.js";

function trackOf(sent, sampleRate = 24000) {
  const player = {
    sampleRate: 24000,
    heardFrame: 0,
    jitter: new SharedJitter(),
    send: (message, transfer = []) => sent.push({ message, transfer }),
  };
  return new Track(player, 1, sampleRate, 0);
}

const pcmOf = (sent) => sent.filter(({ message }) => message.type === "pcm");

test("a slice of a large buffer is sent alone", () => {
  const sent = [];
  const minute = new Int16Array(24000 * 60).fill(7);
  const track = trackOf(sent);
  track.write(minute.subarray(100, 200));
  const [{ message, transfer }] = pcmOf(sent);
  assert.equal(message.samples.buffer.byteLength, 200); // a message clones a whole buffer
  assert.deepEqual([...message.samples], Array(100).fill(7));
  assert.deepEqual(transfer, [message.samples.buffer]);
});

test("written arrays stay with the caller at any rate", () => {
  for (const rate of [24000, 48000]) {
    const sent = [];
    const ding = new Int16Array(480).fill(5);
    const track = trackOf(sent, rate);
    track.write(ding);
    structuredClone(null, { transfer: pcmOf(sent).flatMap(({ transfer }) => transfer) });
    assert.equal(ding.length, 480);
    track.write(ding); // detached, it would be silence
    assert.ok(pcmOf(sent).at(-1).message.samples.length > 0);
  }
});

test("other values than samples throw", () => {
  const track = trackOf([]);
  for (const pcm of [new ArrayBuffer(4), [1, 2], null, "text", new Uint8Array(3)]) {
    assert.throws(() => track.write(pcm), UsageError);
  }
});
