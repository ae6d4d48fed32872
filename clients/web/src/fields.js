// Converts names between the protocol (snake_case) and JavaScript (camelCase).

/** Converts a message of the server to JavaScript's names; binary data and texts are unchanged. */
export function fromWire(value) {
  return renamed(value, (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase()));
}

/** Converts options to the protocol's names. */
export function toWire(value) {
  return renamed(value, (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

function renamed(value, rename) {
  if (Array.isArray(value)) return value.map((one) => renamed(one, rename));
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  // Anything but a plain object is unchanged; the encoder reports what cannot be sent.
  if (Object.prototype.toString.call(value) !== "[object Object]") return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, one]) => [rename(name), renamed(one, rename)]),
  );
}
