// The protocol writes names_like_this, JavaScript namesLikeThis.

/** A message of the server with JavaScript's names; bin and texts stay as they are. */
export function fromWire(value) {
  return renamed(value, (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase()));
}

/** Options with the protocol's names. */
export function toWire(value) {
  return renamed(value, (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

function renamed(value, rename) {
  if (Array.isArray(value)) return value.map((one) => renamed(one, rename));
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  // Anything else than a map stays what it is; whoever packs it says what cannot be sent.
  if (Object.prototype.toString.call(value) !== "[object Object]") return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, one]) => [rename(name), renamed(one, rename)]),
  );
}
