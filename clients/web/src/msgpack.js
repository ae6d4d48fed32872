// The subset of MessagePack that the protocol uses: no extension types, text keys, limited nesting.
//
// Our own, since a page without a build step has no package manager: a few lines that are tested
// against Python's msgpack are simpler than a vendored bundle or an import map, which would conflict
// with the audio worklet and a strict Content-Security-Policy.

const MAX_DEPTH = 16;
const TEXT_OUT = new TextEncoder();
const TEXT_IN = new TextDecoder("utf-8", { fatal: true });

/** Bytes that are not MessagePack, or a value that it cannot encode. */
export class MsgpackError extends Error {
  name = "MsgpackError";
}

/**
 * @param {unknown} value null, boolean, number, bigint, string, Uint8Array, array or plain object;
 *     keys whose value is undefined are omitted.
 * @returns {Uint8Array}
 */
export function encode(value) {
  const out = new Writer();
  write(out, value, 0);
  return out.bytes();
}

/**
 * @param {Uint8Array | ArrayBuffer} data exactly one value.
 * @returns {unknown} maps are objects without a prototype, bin is a separate Uint8Array, integers
 *     beyond 2^53 are bigint.
 */
export function decode(data) {
  const bytes = data instanceof Uint8Array ? data : new Uint8Array(data);
  const from = new Reader(bytes);
  const value = read(from, 0);
  if (from.at !== bytes.length) {
    throw new MsgpackError(`${bytes.length - from.at} bytes follow the value.`);
  }
  return value;
}

class Writer {
  #data = new Uint8Array(256);
  #view = new DataView(this.#data.buffer);
  #at = 0;

  #room(count) {
    if (this.#at + count <= this.#data.length) return;
    const larger = new Uint8Array(Math.max(2 * this.#data.length, this.#at + count));
    larger.set(this.#data.subarray(0, this.#at));
    this.#data = larger;
    this.#view = new DataView(larger.buffer);
  }

  byte(value) {
    this.#room(1);
    this.#data[this.#at++] = value;
  }

  /** Writes a type byte and a number; `method` is one of DataView's setters. */
  number(kind, method, size, value) {
    this.#room(1 + size);
    this.#data[this.#at] = kind;
    this.#view[method](this.#at + 1, value);
    this.#at += 1 + size;
  }

  raw(bytes) {
    this.#room(bytes.length);
    this.#data.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  bytes() {
    return this.#data.slice(0, this.#at);
  }
}

function write(out, value, depth) {
  if (depth > MAX_DEPTH) throw new MsgpackError(`the value is nested deeper than ${MAX_DEPTH}.`);
  if (value === null || value === undefined) return out.byte(0xc0);
  if (typeof value === "boolean") return out.byte(value ? 0xc3 : 0xc2);
  if (typeof value === "number") return writeNumber(out, value);
  if (typeof value === "bigint") return writeBigint(out, value);
  if (typeof value === "string") {
    const text = TEXT_OUT.encode(value);
    if (text.length < 32) out.byte(0xa0 | text.length);
    else writeLength(out, text.length, 0xd9, 0xda, 0xdb);
    return out.raw(text);
  }
  if (value instanceof Uint8Array) {
    writeLength(out, value.length, 0xc4, 0xc5, 0xc6);
    return out.raw(value);
  }
  if (Array.isArray(value)) {
    if (value.length < 16) out.byte(0x90 | value.length);
    else writeLength(out, value.length, null, 0xdc, 0xdd);
    for (const one of value) write(out, one, depth + 1);
    return undefined;
  }
  const kind = Object.getPrototypeOf(value);
  if (typeof value === "object" && (kind === Object.prototype || kind === null)) {
    const pairs = Object.entries(value).filter(([, one]) => one !== undefined);
    if (pairs.length < 16) out.byte(0x80 | pairs.length);
    else writeLength(out, pairs.length, null, 0xde, 0xdf);
    for (const [key, one] of pairs) {
      write(out, key, depth + 1);
      write(out, one, depth + 1);
    }
    return undefined;
  }
  throw new MsgpackError(`${Object.prototype.toString.call(value)} cannot be sent.`);
}

function writeLength(out, length, kind8, kind16, kind32) {
  if (kind8 !== null && length < 0x100) out.number(kind8, "setUint8", 1, length);
  else if (length < 0x10000) out.number(kind16, "setUint16", 2, length);
  else out.number(kind32, "setUint32", 4, length);
}

function writeNumber(out, value) {
  if (!Number.isSafeInteger(value) || Object.is(value, -0)) {
    return out.number(0xcb, "setFloat64", 8, value);
  }
  if (value >= 0) {
    if (value < 0x80) return out.byte(value);
    if (value < 0x100) return out.number(0xcc, "setUint8", 1, value);
    if (value < 0x10000) return out.number(0xcd, "setUint16", 2, value);
    if (value < 0x100000000) return out.number(0xce, "setUint32", 4, value);
    return out.number(0xcf, "setBigUint64", 8, BigInt(value));
  }
  if (value >= -0x20) return out.byte(value & 0xff);
  if (value >= -0x80) return out.number(0xd0, "setInt8", 1, value);
  if (value >= -0x8000) return out.number(0xd1, "setInt16", 2, value);
  if (value >= -0x80000000) return out.number(0xd2, "setInt32", 4, value);
  return out.number(0xd3, "setBigInt64", 8, BigInt(value));
}

function writeBigint(out, value) {
  if (value === BigInt.asUintN(64, value)) return out.number(0xcf, "setBigUint64", 8, value);
  if (value === BigInt.asIntN(64, value)) return out.number(0xd3, "setBigInt64", 8, value);
  throw new MsgpackError(`${value} does not fit into 64 bits.`);
}

class Reader {
  at = 0;

  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Advances by `count` bytes and returns their offset. */
  take(count) {
    const from = this.at;
    if (from + count > this.bytes.length) {
      throw new MsgpackError(`${this.bytes.length} bytes end inside a value.`);
    }
    this.at = from + count;
    return from;
  }

  number(method, size) {
    return this.view[method](this.take(size));
  }

  text(length) {
    const from = this.take(length);
    try {
      return TEXT_IN.decode(this.bytes.subarray(from, from + length));
    } catch {
      throw new MsgpackError("a text is not UTF-8.");
    }
  }

  bin(length) {
    const from = this.take(length);
    return this.bytes.slice(from, from + length); // a copy, aligned for PCM views
  }
}

function read(from, depth) {
  if (depth > MAX_DEPTH) throw new MsgpackError(`the value is nested deeper than ${MAX_DEPTH}.`);
  const kind = from.number("getUint8", 1);
  if (kind < 0x80) return kind;
  if (kind < 0x90) return readMap(from, kind & 0x0f, depth);
  if (kind < 0xa0) return readArray(from, kind & 0x0f, depth);
  if (kind < 0xc0) return from.text(kind & 0x1f);
  if (kind >= 0xe0) return kind - 0x100;
  switch (kind) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: return from.bin(from.number("getUint8", 1));
    case 0xc5: return from.bin(from.number("getUint16", 2));
    case 0xc6: return from.bin(from.number("getUint32", 4));
    case 0xca: return from.number("getFloat32", 4);
    case 0xcb: return from.number("getFloat64", 8);
    case 0xcc: return from.number("getUint8", 1);
    case 0xcd: return from.number("getUint16", 2);
    case 0xce: return from.number("getUint32", 4);
    case 0xcf: return whole(from.number("getBigUint64", 8));
    case 0xd0: return from.number("getInt8", 1);
    case 0xd1: return from.number("getInt16", 2);
    case 0xd2: return from.number("getInt32", 4);
    case 0xd3: return whole(from.number("getBigInt64", 8));
    case 0xd9: return from.text(from.number("getUint8", 1));
    case 0xda: return from.text(from.number("getUint16", 2));
    case 0xdb: return from.text(from.number("getUint32", 4));
    case 0xdc: return readArray(from, from.number("getUint16", 2), depth);
    case 0xdd: return readArray(from, from.number("getUint32", 4), depth);
    case 0xde: return readMap(from, from.number("getUint16", 2), depth);
    case 0xdf: return readMap(from, from.number("getUint32", 4), depth);
    default: throw new MsgpackError(`kind 0x${kind.toString(16)} is not used by the protocol.`);
  }
}

function whole(value) {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function readArray(from, length, depth) {
  from.take(length); // every value has a byte at least: a false length is found before memory is
  from.at -= length;
  const values = [];
  for (let n = 0; n < length; n++) values.push(read(from, depth + 1));
  return values;
}

function readMap(from, length, depth) {
  from.take(2 * length);
  from.at -= 2 * length;
  const map = Object.create(null); // so that "__proto__" is a key like others
  for (let n = 0; n < length; n++) {
    const key = read(from, depth + 1);
    if (typeof key !== "string") throw new MsgpackError(`a key is ${String(key)}, not a text.`);
    map[key] = read(from, depth + 1);
  }
  return map;
}
