// How much audio to buffer before playback starts: as little as the arrivals allow.

/**
 * Chooses the start threshold from how late audio has arrived. Needs no clock and no device.
 *
 * A chunk that arrives 60 ms later than playback would need it, counted from the first chunk, needs
 * 60 ms buffered before the start. The choice is the worst of the last `memory` chunks plus a
 * margin, within bounds. A delay above `mostMs` is not jitter but a pause (an LLM thinks, a user
 * types): counting restarts there, as it does with every utterance.
 */
export class JitterMeter {
  #late = [];
  #began = null;
  #given = 0;

  /**
   * @param {{leastMs?: number, mostMs?: number, firstMs?: number, marginMs?: number,
   *     memory?: number}} [bounds] `firstMs` is used before anything was measured.
   */
  constructor({ leastMs = 20, mostMs = 400, firstMs = 60, marginMs = 15, memory = 64 } = {}) {
    Object.assign(this, { leastMs, mostMs, firstMs, marginMs, memory });
  }

  /** Milliseconds to buffer before the next start. */
  get targetMs() {
    if (!this.#late.length) return this.firstMs;
    const wanted = Math.max(...this.#late) + this.marginMs;
    return Math.min(this.mostMs, Math.max(this.leastMs, wanted));
  }

  /**
   * Records the arrival of a chunk.
   *
   * @param {number} nowMs time of arrival, by any monotonic clock.
   * @param {number} lengthMs its duration.
   */
  arrived(nowMs, lengthMs) {
    if (this.#began === null) {
      this.#began = nowMs;
      this.#given = lengthMs;
      return;
    }
    const late = nowMs - this.#began - this.#given;
    if (late > this.mostMs) {
      this.#began = nowMs;
      this.#given = lengthMs;
      return;
    }
    this.#late.push(Math.max(0, late));
    if (this.#late.length > this.memory) this.#late.shift();
    this.#given += lengthMs;
  }

  /** Ends an utterance: the next chunk is the first of another one. */
  ended() {
    this.#began = null;
  }
}

/**
 * A meter for utterances that may overlap, with a common memory.
 *
 * @param {ConstructorParameters<typeof JitterMeter>[0]} [bounds]
 */
export class SharedJitter {
  constructor(bounds = {}) {
    this.bounds = bounds;
    this.targets = []; // of the latest utterances, in order
  }

  get targetMs() {
    return this.targets.length
      ? Math.max(...this.targets)
      : new JitterMeter(this.bounds).targetMs;
  }

  /** Creates a meter for one utterance; pass it to `over` at its end. */
  meter() {
    return new JitterMeter(this.bounds);
  }

  /**
   * @param {JitterMeter} meter
   * @param {boolean} measured whether it has measured anything.
   */
  over(meter, measured) {
    if (!measured) return;
    this.targets.push(meter.targetMs);
    if (this.targets.length > 8) this.targets.shift();
  }
}
