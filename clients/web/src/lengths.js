// Lengths of files: a stream's header comes before its length is known.

/**
 * Joins the audio of a finished utterance into a file whose header has its true length. Without it,
 * a `wav` claims 4 GiB and a `flac` an unknown number of samples; other formats need none.
 *
 * @param {string} format as in the options of the utterance.
 * @param {Uint8Array[]} parts its audio, in order.
 * @param {number} samples their number, `Speech.samples`.
 * @returns {Uint8Array}
 */
export function withLength(format, parts, samples) {
  const file = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    file.set(part, at);
    at += part.length;
  }
  const view = new DataView(file.buffer);
  if (format === "wav" && file.length >= WAV_HEADER) {
    view.setUint32(4, file.length - 8, true);
    view.setUint32(WAV_HEADER - 4, file.length - WAV_HEADER, true);
  } else if (format === "flac" && file.length >= FLAC_HEADER) {
    // 36 bits in the first metadata block, behind 4 bits of another field.
    view.setUint8(21, (view.getUint8(21) & 0xf0) | Math.floor(samples / 2 ** 32));
    view.setUint32(22, samples % 2 ** 32);
  }
  return file;
}

const WAV_HEADER = 44; // as the server writes it
const FLAC_HEADER = 42;
