import assert from "node:assert/strict";
import test from "node:test";

import { Listener } from "../src/index.js";
import { fakeServer } from "./fake.js";

const player = {
  sampleRate: 48000,
  state: "running",
  stats: { tracks: 0 },
  context: { currentTime: 0 },
  addEventListener() {},
  stop() {},
};

function listenerOf(fake) {
  return new Listener(player, {
    server: "http://speech.example:8035/",
    WebSocket: fake.WebSocket,
    fetch: () => Promise.reject(new Error("offline")),
    backoffMs: 1,
  });
}

/** Stopped and started again before it was connected. */
async function restarted(fake) {
  const listener = listenerOf(fake);
  listener.start();
  listener.stop();
  listener.start();
  await soon();
  return listener;
}

const open = (fake) => fake.lines.filter(({ socket }) => socket.readyState < 2).length;
const soon = () => new Promise((resolve) => setTimeout(resolve, 20));

test("a restart before the connection is open leads to one connection", async () => {
  const fake = fakeServer(() => {});
  const listener = await restarted(fake);
  assert.equal(open(fake), 1);
  listener.stop();
  assert.equal(open(fake), 0);
});

test("an attempt from before a stop does not retry after the next start", async () => {
  const fake = fakeServer(() => {}, { refuse: 2 });
  const listener = await restarted(fake);
  assert.equal(open(fake), 1);
  assert.equal(fake.lines.length, 3); // both were refused, and one tried again
  listener.stop();
});

const RATE = 48000;

/** A listener on a line whose audio clock stands still on request, and what its tracks got. */
async function listening(mode, lateMs) {
  const fake = fakeServer((line, message) => {
    if (message.type === "ping" && message.data) line.pings = [...(line.pings ?? []), message.data];
  });
  const tracks = [];
  const clock = { currentTime: 100 };
  const began = Date.now() - 1e3 * clock.currentTime;
  const own = Object.assign(new EventTarget(), {
    sampleRate: RATE,
    state: "running",
    context: clock,
    stop() {},
    track() {
      const track = new EventTarget();
      tracks.push(Object.assign(track, {
        got: [], // [first sample, samples] of every write
        skipped: 0,
        bufferedMs: 0,
        over: false,
        write: (pcm, first) => track.got.push([first, pcm.length / 2]),
        segment() {},
        skip: (ms) => (track.skipped += ms),
        end: () => (track.over = true),
        finished: new Promise(() => {}),
      }));
      return track;
    },
  });
  Object.defineProperty(own, "stats", {
    get: () => ({ tracks: tracks.filter(({ over }) => !over).length }),
  });
  const listener = new Listener(own, {
    server: "http://speech.example:8035/", WebSocket: fake.WebSocket, mode, lateMs,
  });
  listener.start();
  await soon();
  const [line] = fake.lines;
  const say = async (...messages) => {
    for (const message of messages) line.say(message);
    await soon();
  };
  await say({ type: "ready", sample_rate: RATE, mode });
  /** The audio clock, as far behind the wall clock as is given. */
  const suspend = (ms) => (clock.currentTime = (Date.now() - began - ms) / 1e3);
  suspend(0);
  const allow = () => own.dispatchEvent(new Event("state"));
  return { listener, line, tracks, say, suspend, allow };
}

const begin = (stream) => ({ type: "begin", stream, after: null });
const audio = (stream, seconds, first = 0) => ({
  type: "audio", stream, first_sample: first * RATE, pcm: new Uint8Array(2 * seconds * RATE),
});
const total = ({ got }) => got.reduce((sum, [, samples]) => sum + samples, 0) / RATE;

test("speech of a suspension is skipped, what is spoken from then on is not", async () => {
  const it = await listening("queue", 2000);
  it.suspend(7000);
  await it.say(begin("a"), audio("a", 3), { type: "end", stream: "a" });
  await it.say(begin("b"), audio("b", 3), audio("b", 3, 3));
  assert.equal(it.line.pings.length, 1);
  await it.say({ type: "pong", data: it.line.pings[0] });
  await it.say(audio("b", 1, 6), begin("c"), audio("c", 2));
  const [a, b, c] = it.tracks;
  assert.equal(total(a), 0);
  // 7 s are late, of which 3 s were spent on the first: the rest is at the live edge.
  assert.ok(Math.abs(total(b) - 3) < 0.2, `${total(b)}`);
  assert.ok(Math.abs(b.got[0][0] / RATE - 4) < 0.2);
  assert.equal(total(c), 2);
  it.listener.stop();
});

test("what was buffered before a suspension is skipped first", async () => {
  for (const mode of ["queue", "mix"]) {
    const it = await listening(mode, 500);
    await it.say(begin("a"), audio("a", 5), begin("b"), audio("b", 5));
    const [a, b] = it.tracks;
    a.bufferedMs = 2000;
    b.bufferedMs = 5000;
    it.suspend(3000);
    await it.say(audio("a", 2, 5), audio("b", 1, 5));
    const near = (value, wanted) => assert.ok(Math.abs(value - wanted) < 200, `${value}, ${mode}`);
    near(a.skipped, 2000);
    near(b.skipped, mode === "mix" ? 3000 : 1000);
    near(1e3 * total(a), mode === "mix" ? 6000 : 7000);
    near(1e3 * total(b), 6000);
    it.listener.stop();
  }
});

test("what is a little late is heard, and adds up until all is quiet", async () => {
  const it = await listening("queue", 2000);
  it.suspend(1500);
  await it.say(begin("a"), audio("a", 1));
  it.suspend(1800);
  await it.say(audio("a", 1, 1));
  const [a] = it.tracks;
  assert.equal(total(a), 2);
  it.suspend(2300);
  await it.say(audio("a", 1, 2));
  assert.equal(total(a), 2);
  it.suspend(3500);
  a.over = true;
  await it.say({ type: "pong", data: it.line.pings[0] }); // nothing plays or is on its way
  it.suspend(5000);
  await it.say(begin("b"), audio("b", 1));
  assert.equal(total(it.tracks[1]), 1);
  it.listener.stop();
});

test("what came while the browser did not allow playback makes nothing late", async () => {
  const it = await listening("queue", 2000);
  it.suspend(60_000);
  it.allow();
  await it.say(begin("a"), audio("a", 1));
  assert.equal(total(it.tracks[0]), 1);
  it.listener.stop();
});
