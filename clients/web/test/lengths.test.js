import assert from "node:assert/strict";
import test from "node:test";

import { withLength } from "../src/lengths.js";

const UNKNOWN = 0xffff_ffff;

function cut(bytes, size) {
  const parts = [];
  for (let at = 0; at < bytes.length; at += size) parts.push(bytes.subarray(at, at + size));
  return parts;
}

test("a wav gets the sizes of what it holds", () => {
  const file = new Uint8Array(44 + 1000).fill(7);
  const view = new DataView(file.buffer);
  view.setUint32(4, UNKNOWN, true);
  view.setUint32(40, UNKNOWN, true);
  for (const size of [3, 44, 2000]) {
    const saved = withLength("wav", cut(file, size), 500);
    const found = new DataView(saved.buffer);
    assert.deepEqual([found.getUint32(4, true), found.getUint32(40, true)], [1036, 1000]);
    assert.deepEqual(saved.subarray(44), file.subarray(44));
  }
});

test("a flac gets its number of samples, and keeps the field next to it", () => {
  const file = new Uint8Array(50).fill(9);
  file[21] = 0xf0;
  for (const samples of [0, 441, 2 ** 32 + 5, 2 ** 36 - 1]) {
    const saved = withLength("flac", [file], samples);
    const found = new DataView(saved.buffer);
    assert.equal(found.getUint8(21) >> 4, 0xf);
    assert.equal((found.getUint8(21) & 0xf) * 2 ** 32 + found.getUint32(22), samples);
    assert.deepEqual(saved.subarray(26), file.subarray(26));
  }
});

test("other formats are joined as they are, and so is what is too short", () => {
  const bytes = Uint8Array.from({ length: 100 }, (_, n) => n);
  for (const format of ["mp3", "opus", "aac", "pcm"]) {
    assert.deepEqual(withLength(format, cut(bytes, 7), 3), bytes);
  }
  for (const format of ["wav", "flac"]) {
    assert.deepEqual(withLength(format, [bytes.subarray(0, 20)], 3), bytes.subarray(0, 20));
  }
});
