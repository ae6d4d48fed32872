// How much sound to collect before playing starts: as little as the arrivals allow.

/**
 * Chooses the start threshold from how late sound has arrived; knows no clock and no device.
 *
 * A piece that arrives 60 ms later than playing would need it, counted from the first piece, needs
 * 60 ms collected before the start. The choice is the worst of the last `memory` pieces plus a
 * margin, within bounds. Lateness beyond `mostMs` is not jitter but a pause (someone thinks, or
 * types): counting starts again there, as it does with every utterance.
 */
export class JitterMeter {
  #late = [];
  #began = null;
  #given = 0;

  /**
   * @param {{leastMs?: number, mostMs?: number, firstMs?: number, marginMs?: number,
   *     memory?: number}} [bounds] `firstMs` is the choice before anything was measured.
   */
  constructor({ leastMs = 20, mostMs = 400, firstMs = 60, marginMs = 15, memory = 64 } = {}) {
    Object.assign(this, { leastMs, mostMs, firstMs, marginMs, memory });
  }

  /** What to collect before the next start, in milliseconds. */
  get targetMs() {
    if (!this.#late.length) return this.firstMs;
    const wanted = Math.max(...this.#late) + this.marginMs;
    return Math.min(this.mostMs, Math.max(this.leastMs, wanted));
  }

  /**
   * Notes a piece.
   *
   * @param {number} nowMs when it came, by any steady clock.
   * @param {number} lengthMs of its sound.
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

  /** Notes the end of an utterance: the next piece is the first of another. */
  ended() {
    this.#began = null;
  }
}

/**
 * A meter for utterances that may overlap: one clock each, one memory for all.
 *
 * @param {ConstructorParameters<typeof JitterMeter>[0]} [bounds]
 */
export class SharedJitter {
  constructor(bounds = {}) {
    this.bounds = bounds;
    this.targets = []; // of the last utterances, the newest last
  }

  get targetMs() {
    return this.targets.length
      ? Math.max(...this.targets)
      : new JitterMeter(this.bounds).targetMs;
  }

  /** A meter for one utterance; hand it back to `over`. */
  meter() {
    return new JitterMeter(this.bounds);
  }

  /**
   * @param {JitterMeter} meter
   * @param {boolean} measured whether it saw more than one piece.
   */
  over(meter, measured) {
    if (!measured) return;
    this.targets.push(meter.targetMs);
    if (this.targets.length > 8) this.targets.shift();
  }
}
