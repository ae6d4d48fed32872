// Which segment of the text is being played: segments by their first sample.

/** The segments of one utterance. */
export class Captions {
  #segments = [];
  #begun = 0;

  /** @param {{text: string, firstSample: number}} segment in order. */
  add(segment) {
    this.#segments.push(segment);
  }

  /**
   * @param {number} heard samples played so far.
   * @returns {{text: string, firstSample: number}[]} segments that started since the last call.
   */
  advance(heard) {
    const from = this.#begun;
    while (
      this.#begun < this.#segments.length && this.#segments[this.#begun].firstSample < heard
    ) {
      this.#begun += 1;
    }
    return this.#segments.slice(from, this.#begun);
  }

  /** The segments whose playback has started; the last one may have been interrupted. */
  get heard() {
    return this.#segments.slice(0, this.#begun);
  }
}

/** @returns {string} a segment's text for display: without tags such as `<|speaker:1|>`. */
export function plain(text) {
  return text.replace(/<\|[^<>|]*\|>/g, "").trim();
}
