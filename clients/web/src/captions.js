// Which piece of the text is heard: segments by the sample at which they begin.

/** The segments of one utterance. */
export class Captions {
  #segments = [];
  #begun = 0;

  /** @param {{text: string, firstSample: number}} segment they come in order. */
  add(segment) {
    this.#segments.push(segment);
  }

  /**
   * @param {number} heard samples that the listener has heard.
   * @returns {{text: string, firstSample: number}[]} segments that began since the last call.
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

  /** The segments that have begun to be heard; the last one may have been broken off. */
  get heard() {
    return this.#segments.slice(0, this.#begun);
  }
}

/** @returns {string} a segment's text for readers: without tags such as `<|speaker:1|>`. */
export function plain(text) {
  return text.replace(/<\|[^<>|]*\|>/g, "").trim();
}
