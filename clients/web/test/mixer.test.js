import assert from "node:assert/strict";
import test from "node:test";

import { Mixer, Ring } from "../src/processor.js";

const BLOCK = 128;

/** A mixer, what it reported, and a clock. */
function rig() {
  const reports = [];
  const mixer = new Mixer((report) => reports.push(report));
  let frame = 0;
  return {
    reports,
    mixer,
    open: (id, more = {}) =>
      mixer.take({ type: "open", id, threshold: 0, delay: 0, most: 1e6, ...more }),
    pcm: (id, samples) => mixer.take({ type: "pcm", id, samples }),
    render(blocks = 1) {
      const out = new Float32Array(blocks * BLOCK);
      for (let n = 0; n < blocks; n++, frame += BLOCK) {
        mixer.render(out.subarray(n * BLOCK, (n + 1) * BLOCK), frame);
      }
      return out;
    },
    of: (type) => reports.filter((report) => report.type === type),
  };
}

const ramp = (count, from = 1) => Int16Array.from({ length: count }, (_, n) => from + n);
const heard = (out) => Array.from(out, (value) => value * 32768).filter((value) => value !== 0);

test("irregular chunks are played unchanged, every sample once", () => {
  const it = rig();
  it.open(0);
  const all = ramp(5_000);
  let at = 0;
  for (const size of [1, 3, 7, 441, 0, 2_048, 100, 2_400]) {
    it.pcm(0, all.slice(at, at + size));
    at += size;
  }
  it.mixer.take({ type: "end", id: 0 });
  assert.deepEqual(heard(it.render(41)), Array.from(all));
  assert.deepEqual(it.of("run").map(({ frame, sample }) => [frame, sample]), [[0, 0]]);
  const [over] = it.of("over");
  assert.deepEqual([over.frame, over.sample, over.stopped, over.underruns], [5_000, 5_000, false, 0]);
  assert.equal(it.mixer.size, 0);
});

test("playback starts when enough is buffered", () => {
  const it = rig();
  it.open(0, { threshold: 1_000 });
  it.pcm(0, ramp(600));
  assert.deepEqual(heard(it.render(2)), []);
  it.pcm(0, ramp(600, 601));
  assert.equal(heard(it.render(2))[0], 1);
  assert.equal(it.of("run")[0].frame, 2 * BLOCK);
});

test("playback starts after waiting as long as the threshold", () => {
  const it = rig();
  it.open(0, { threshold: 1_000 });
  it.render(20); // waiting for the first sample counts for nothing
  it.pcm(0, ramp(600));
  assert.deepEqual(heard(it.render(8)), []);
  assert.equal(heard(it.render(1))[0], 1);
});

test("a short utterance that has ended does not wait", () => {
  const it = rig();
  it.open(0, { threshold: 1e5 });
  it.pcm(0, ramp(10));
  it.mixer.take({ type: "end", id: 0 });
  assert.equal(heard(it.render(1)).length, 10);
});

test("a delay is applied once", () => {
  const it = rig();
  it.open(0, { delay: 3 * BLOCK });
  it.pcm(0, ramp(BLOCK));
  it.render(5);
  assert.equal(it.of("run")[0].frame, 3 * BLOCK);
  it.pcm(0, ramp(BLOCK));
  it.render(1);
  assert.equal(it.of("run")[1].frame, 5 * BLOCK);
});

test("an underrun is counted, and the threshold applies again", () => {
  const it = rig();
  it.open(0, { threshold: 200 });
  it.pcm(0, ramp(200));
  it.render(3);
  const [gap] = it.of("gap");
  assert.deepEqual([gap.frame, gap.sample, gap.underruns], [200, 200, 1]);
  it.pcm(0, ramp(100, 201));
  assert.deepEqual(heard(it.render(1)), []);
  it.pcm(0, ramp(100, 301));
  assert.equal(heard(it.render(2))[0], 201);
  const again = it.of("run")[1];
  assert.deepEqual([again.frame, again.sample], [4 * BLOCK, 200]);
});

test("a stop fades to silence and drops the rest", () => {
  const it = rig();
  it.open(0);
  it.pcm(0, new Int16Array(48_000).fill(16_384));
  it.render(1);
  it.mixer.take({ type: "stop", id: 0, fade: 960 });
  const out = it.render(10);
  for (let n = 1; n < 960; n++) assert.ok(out[n] <= out[n - 1], `louder at ${n}`);
  assert.ok(out[0] > 0.49);
  assert.ok(out[0] - out[959] > 0.49 && Math.max(...out.subarray(959)) === 0);
  const [over] = it.of("over");
  assert.deepEqual([over.stopped, over.sample, over.frame], [true, BLOCK + 960, BLOCK + 960]);
  it.pcm(0, ramp(100));
  assert.deepEqual(heard(it.render(1)), []);
});

test("a stop of all voices, one of which has not started", () => {
  const it = rig();
  it.open(0);
  it.open(1, { threshold: 1e5 });
  it.pcm(0, ramp(10_000));
  it.pcm(1, ramp(100));
  it.render(1);
  it.mixer.take({ type: "stop", id: null, fade: 100 });
  it.render(2);
  assert.deepEqual(it.of("over").map(({ id, sample }) => [id, sample]), [[1, 0], [0, 228]]);
});

test("a fade that runs dry ends", () => {
  const it = rig();
  it.open(0);
  it.pcm(0, ramp(200));
  it.render(1);
  it.mixer.take({ type: "stop", id: 0, fade: 960 });
  it.render(1);
  assert.equal(it.of("over")[0].sample, 200);
});

test("streams are mixed", () => {
  const it = rig();
  it.open(0);
  it.open(1);
  it.pcm(0, new Int16Array(BLOCK).fill(100));
  it.pcm(1, new Float32Array(BLOCK).fill(200 / 32768));
  assert.deepEqual(new Set(heard(it.render(1))), new Set([300]));
});

test("a stream behind another one starts when that one has finished", () => {
  const it = rig();
  it.open(0);
  it.open(1, { after: 0 });
  it.pcm(1, ramp(BLOCK, 1_000));
  it.pcm(0, ramp(200));
  it.mixer.take({ type: "end", id: 0 });
  it.mixer.take({ type: "end", id: 1 });
  const out = heard(it.render(4));
  assert.deepEqual(out, [...ramp(200), ...ramp(BLOCK, 1_000)]);
});

test("a stream that pauses lets the next one pass", () => {
  const it = rig();
  it.open(0);
  it.open(1, { after: 0 });
  it.pcm(0, ramp(BLOCK));
  it.pcm(1, ramp(BLOCK, 1_000));
  assert.deepEqual(heard(it.render(4)), [...ramp(BLOCK), ...ramp(BLOCK, 1_000)]);
  assert.equal(it.mixer.size, 2);
});

test("a delay shifts consecutive streams without adding gaps", () => {
  const it = rig();
  for (const id of [0, 1]) {
    it.open(id, { after: id - 1, delay: 5 * BLOCK });
    it.pcm(id, ramp(BLOCK));
    it.mixer.take({ type: "end", id });
  }
  it.render(8);
  assert.deepEqual(it.of("run").map(({ frame }) => frame), [5 * BLOCK, 6 * BLOCK]);
});

test("skipped samples are not heard, and the position says so", () => {
  const it = rig();
  it.open(0);
  it.pcm(0, ramp(300));
  it.pcm(0, ramp(700, 301));
  const skip = (id, count) => it.mixer.take({ type: "skip", id, count });
  skip(0, 100); // before it starts
  const before = heard(it.render(1));
  assert.deepEqual(before, Array.from(ramp(BLOCK, 101)));
  skip(0, 172); // across two chunks
  assert.deepEqual(heard(it.render(1)), Array.from(ramp(BLOCK, 401)));
  assert.deepEqual(it.of("run").map(({ frame, sample }) => [frame, sample]), [[0, 100], [BLOCK, 400]]);
  skip(0, 1e6); // more than there is
  it.render(1);
  assert.deepEqual(it.of("gap").map(({ sample }) => sample), [1_000]);
  it.mixer.take({ type: "end", id: 0 });
  it.render(1);
  assert.deepEqual(it.of("over").map(({ sample }) => sample), [1_000]);
  skip(0, 10); // it is over
});

test("messages for a finished stream are dropped", () => {
  const it = rig();
  it.pcm(5, ramp(10));
  it.mixer.take({ type: "end", id: 5 });
  it.mixer.take({ type: "stop", id: 5, fade: 5 });
  assert.deepEqual(heard(it.render(1)), []);
  assert.deepEqual(it.reports, []);
});

test("a full buffer is reported", () => {
  const it = rig();
  it.open(0, { most: 100, threshold: 1e5 });
  it.pcm(0, ramp(60));
  it.pcm(0, ramp(60));
  assert.deepEqual(it.of("full"), [{ type: "full", id: 0, waiting: 60 }]);
});

test("a ring of thousands of chunks keeps their order and frees them", () => {
  const ring = new Ring(1e6);
  const out = new Float32Array(10);
  let want = 1;
  for (let turn = 0; turn < 2_000; turn++) {
    ring.push(ramp(7, 7 * turn + 1));
    if (turn % 2) {
      out.fill(0);
      assert.equal(ring.mixInto(out, 0), 10);
      assert.deepEqual(heard(out), Array.from({ length: 10 }, (_, n) => want + n));
      want += 10;
    }
  }
  assert.equal(ring.length, 7 * 2_000 - 10 * 1_000);
});
