import assert from "node:assert/strict";
import test from "node:test";

import { MsgpackError, decode, encode } from "../src/msgpack.js";

const bytes = (...values) => Uint8Array.from(values);

test("the protocol's own example", () => {
  const hex = "82a474797065a474657874a474657874ad48656c6c6f2074686572652e20";
  const packed = encode({ type: "text", text: "Hello there. " });
  assert.equal(Buffer.from(packed).toString("hex"), hex);
  assert.deepEqual({ ...decode(packed) }, { type: "text", text: "Hello there. " });
});

const EDGES = [
  null, true, false, 0, 1, 127, 128, 255, 256, 65535, 65536, 2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1,
  -1, -32, -33, -128, -129, -32768, -32769, -(2 ** 31), -(2 ** 31) - 1, -(2 ** 53) + 1,
  2n ** 63n, 2n ** 64n - 1n, -(2n ** 63n), 0.5, -0, 1e300, Infinity,
  "", "a".repeat(31), "a".repeat(32), "ä".repeat(200), "☃".repeat(30_000), "😀",
  [], Array(15).fill(1), Array(16).fill("x"), Array(70_000).fill(0),
];
for (const value of EDGES) {
  const name = typeof value === "string" || Array.isArray(value) ? `length ${value.length}` : value;
  test(`there and back: ${String(name)}`, () => assert.deepStrictEqual(decode(encode(value)), value));
}

test("bin of every length is a copy", () => {
  for (const length of [0, 1, 255, 256, 65535, 65536]) {
    const bin = new Uint8Array(length).fill(7);
    const back = decode(encode({ bin })).bin;
    assert.deepEqual(back, bin);
    assert.equal(back.buffer.byteLength, length);
    assert.equal(back.byteOffset, 0);
  }
});

test("large maps, and keys that objects inherit", () => {
  const map = Object.fromEntries(Array.from({ length: 70_000 }, (_, n) => [`k${n}`, n]));
  assert.deepEqual({ ...decode(encode(map)) }, map);
  const own = decode(bytes(0x81, 0xa9, ...Buffer.from("__proto__"), 1));
  assert.deepEqual(Object.keys(own), ["__proto__"]);
  assert.equal({}.polluted, undefined);
});

test("undefined fields are omitted", () => {
  assert.deepEqual({ ...decode(encode({ a: undefined, b: 1 })) }, { b: 1 });
});

test("every truncated message is refused", () => {
  const whole = encode({ type: "audio", seq: 70_000, audio: new Uint8Array(300), list: [1.5, "x"] });
  for (let end = 0; end < whole.length; end++) {
    assert.throws(() => decode(whole.subarray(0, end)), MsgpackError);
  }
  assert.throws(() => decode(bytes(...whole, 0)), /1 bytes follow/);
});

test("false lengths are refused before memory is allocated", () => {
  for (const kind of [0xdd, 0xdf, 0xdb, 0xc6]) {
    assert.throws(() => decode(bytes(kind, 0xff, 0xff, 0xff, 0xff)), MsgpackError);
  }
});

test("what the protocol does not use is refused", () => {
  assert.throws(() => decode(bytes(0xd4, 1, 2)), /kind 0xd4/); // an extension type
  assert.throws(() => decode(bytes(0xc1)), /kind 0xc1/);
  assert.throws(() => decode(bytes(0x81, 1, 1)), /not a text/);
  assert.throws(() => decode(bytes(0xa1, 0xff)), /UTF-8/);
  assert.throws(() => decode(Uint8Array.from(Array(40).fill(0x91))), /nested deeper/);
});

test("what cannot be sent is refused", () => {
  assert.throws(() => encode({ f: () => 1 }), MsgpackError);
  assert.throws(() => encode(new Map()), MsgpackError);
  assert.throws(() => encode(2n ** 64n), /64 bits/);
  const round = {};
  round.self = round;
  assert.throws(() => encode(round), /nested deeper/);
});
