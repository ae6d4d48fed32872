import assert from "node:assert/strict";
import test from "node:test";

import { Listener } from "../src/index.js";
import { fakeServer } from "./fake.js";

const player = { sampleRate: 48000, state: "running", stats: { tracks: 0 }, stop() {} };

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
