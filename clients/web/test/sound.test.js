import assert from "node:assert/strict";
import test from "node:test";

import { Captions, plain } from "../src/captions.js";
import { Resampler } from "../src/resample.js";

function resample(samples, from, to, sizes) {
  const made = new Resampler(from, to);
  const parts = [];
  let at = 0;
  for (let n = 0; at < samples.length; n++) {
    const size = sizes[n % sizes.length];
    parts.push(made.push(samples.subarray(at, at + size)));
    at += size;
  }
  parts.push(made.flush());
  const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    all.set(part, place);
    place += part.length;
  }
  return all;
}

const sine = (rate, count, hz) =>
  Float32Array.from({ length: count }, (_, n) => 0.5 * Math.sin((2 * Math.PI * hz * n) / rate));

for (const [from, to] of [[44100, 48000], [48000, 44100], [24000, 48000], [8000, 44100], [48000, 8000]]) {
  test(`${from} to ${to}: a tone within -80 dB, as long as it should be`, () => {
    const out = resample(sine(from, from, 440), from, to, [from]);
    assert.equal(out.length, to);
    const want = sine(to, to, 440);
    let worst = 0;
    for (let n = 400; n < to - 400; n++) worst = Math.max(worst, Math.abs(out[n] - want[n]));
    assert.ok(worst < 0.5 * 1e-4, `${worst}`);
  });

  test(`${from} to ${to}: the same in awkward pieces`, () => {
    const noise = Float32Array.from({ length: 5_000 }, (_, n) => ((n * 7919) % 1000) / 1000 - 0.5);
    const whole = resample(noise, from, to, [5_000]);
    const parts = resample(noise, from, to, [1, 2_048, 3, 441, 7]);
    assert.deepEqual(parts, whole);
  });
}

test("frequencies above the lower Nyquist are removed", () => {
  const out = resample(sine(48000, 48000, 7000), 48000, 8000, [4_800]);
  assert.ok(Math.max(...out.subarray(200, 7_800).map(Math.abs)) < 0.5e-4);
});

test("captions start with their sample", () => {
  const captions = new Captions();
  captions.add({ text: "One.", firstSample: 0 });
  captions.add({ text: "Two.", firstSample: 1_000 });
  assert.deepEqual(captions.advance(0), []); // not a sample was heard
  assert.deepEqual(captions.advance(1).map(({ text }) => text), ["One."]);
  assert.deepEqual(captions.advance(1_000), []);
  captions.add({ text: "Three.", firstSample: 1_001 });
  assert.deepEqual(captions.advance(9_999).map(({ text }) => text), ["Two.", "Three."]);
  assert.equal(captions.heard.length, 3);
});

test("displayed text has no tags", () => {
  assert.equal(plain("<|speaker:0|> Hello <b>there</b>. <|speaker:1|>Hi."), "Hello <b>there</b>. Hi.");
  assert.equal(plain("a <| b"), "a <| b");
});
