import assert from "node:assert/strict";
import test from "node:test";

import { JitterMeter, SharedJitter } from "../src/jitter.js";

function meter(arrivals, bounds) {
  const made = new JitterMeter({ leastMs: 20, mostMs: 400, firstMs: 60, marginMs: 15, ...bounds });
  for (const at of arrivals) made.arrived(at, 50);
  return made;
}

test("the first choice is used before anything was measured", () => {
  assert.equal(meter([]).targetMs, 60);
  assert.equal(meter([1000]).targetMs, 60);
});

test("audio on time needs the minimum", () => {
  assert.equal(meter([0, 50, 100, 150]).targetMs, 20);
  assert.equal(meter([0, 1, 2, 3]).targetMs, 20);
});

test("the target is the worst lateness plus a margin", () => {
  assert.equal(meter([0, 50, 175, 150]).targetMs, 75 + 15);
  assert.equal(meter([0, 90, 180, 270]).targetMs, 120 + 15); // it drifts: the last needs the most
});

test("the target stays within its bounds", () => {
  assert.equal(meter([0, 440], { mostMs: 400 }).targetMs, 400);
});

test("a pause is not jitter", () => {
  assert.equal(meter([0, 50, 5000, 5050]).targetMs, 20);
});

test("another utterance restarts the clock and keeps the memory", () => {
  const made = meter([0, 150]);
  made.ended();
  made.arrived(9_000, 50);
  made.arrived(9_050, 50);
  assert.equal(made.targetMs, 115);
});

test("old lateness is forgotten", () => {
  const made = meter([0, 150], { memory: 4 });
  for (let n = 2; n < 6; n++) made.arrived(50 * n, 50);
  assert.equal(made.targetMs, 20);
});

test("overlapping utterances share their measurements", () => {
  const shared = new SharedJitter({ firstMs: 60 });
  assert.equal(shared.targetMs, 60);
  const [one, two] = [shared.meter(), shared.meter()];
  for (const at of [0, 130]) one.arrived(at, 50);
  for (const at of [3, 53]) two.arrived(at, 50);
  shared.over(one, true);
  shared.over(two, true);
  assert.equal(shared.targetMs, 95);
  shared.over(shared.meter(), false); // nothing came: nothing learned
  assert.equal(shared.targetMs, 95);
  for (let n = 0; n < 8; n++) shared.over(two, true);
  assert.equal(shared.targetMs, 20);
});
