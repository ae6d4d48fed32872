// A queue of sound: pieces in, samples out, nothing copied twice.

/** Int16 or float32 samples that wait to be played; at most `most` of them. */
export class Ring {
  #pieces = [];
  #first = 0; // index of the first piece that is left; the array is cut now and then
  #at = 0; // sample within it

  /** @param {number} most samples that may wait. */
  constructor(most) {
    this.most = most;
    this.length = 0;
  }

  /**
   * @param {Int16Array | Float32Array} samples kept, not copied.
   * @returns {boolean} whether there was room.
   */
  push(samples) {
    if (this.length + samples.length > this.most) return false;
    if (samples.length) this.#pieces.push(samples);
    this.length += samples.length;
    return true;
  }

  /**
   * Adds samples to `out`.
   *
   * @param {Float32Array} out
   * @param {number} from index in `out`.
   * @param {(index: number) => number} [gain] of the index-th sample taken by this call.
   * @returns {number} how many there were.
   */
  mixInto(out, from, gain) {
    let done = 0;
    const room = out.length - from;
    while (done < room && this.length) {
      const piece = this.#pieces[this.#first];
      const count = Math.min(room - done, piece.length - this.#at);
      const scale = piece instanceof Int16Array ? 1 / 32768 : 1;
      for (let n = 0; n < count; n++) {
        const value = piece[this.#at + n] * scale;
        out[from + done + n] += gain ? value * gain(done + n) : value;
      }
      done += count;
      this.length -= count;
      this.#at += count;
      if (this.#at === piece.length) this.#next();
    }
    return done;
  }

  clear() {
    this.#pieces = [];
    this.#first = this.#at = this.length = 0;
  }

  #next() {
    this.#pieces[this.#first++] = null;
    this.#at = 0;
    if (this.#first >= 64) {
      this.#pieces.splice(0, this.#first);
      this.#first = 0;
    }
  }
}
