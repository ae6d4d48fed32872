// Streaming sample-rate conversion. The output does not depend on how the input is split.

const TAPS = 24; // on each side of a sample, at the lower of both rates
const BETA = 9; // of the Kaiser window: side lobes below -90 dB
const PASS = 0.93; // pass band as a fraction of the lower Nyquist frequency

/** A windowed-sinc resampler with aligned output; it holds back `TAPS` samples until `flush`. */
export class Resampler {
  #input = new Float32Array(0);
  #begins; // position of `#input[0]` in the stream
  #made = 0; // output samples
  #given = 0; // input samples

  /**
   * @param {number} from rate in Hz.
   * @param {number} to rate in Hz.
   */
  constructor(from, to) {
    const common = gcd(from, to);
    this.up = to / common;
    this.down = from / common;
    const cut = Math.min(1, to / from) * PASS;
    this.reach = Math.ceil(TAPS * Math.max(1, from / to));
    this.#begins = -this.reach;
    this.#input = new Float32Array(this.reach);
    this.phases = [];
    for (let phase = 0; phase < this.up; phase++) this.phases.push(this.#taps(phase, cut));
  }

  /**
   * @param {Float32Array} samples
   * @returns {Float32Array} the samples that later input cannot change.
   */
  push(samples) {
    this.#given += samples.length;
    return this.#run(samples, Infinity);
  }

  /** @returns {Float32Array} the remaining samples; `push` must not be called afterwards. */
  flush() {
    const total = Math.ceil((this.#given * this.up) / this.down);
    return this.#run(new Float32Array(this.reach + 1), total);
  }

  #taps(phase, cut) {
    const taps = new Float32Array(2 * this.reach);
    let sum = 0;
    for (let n = 0; n < taps.length; n++) {
      const x = n - this.reach + 1 - phase / this.up;
      const angle = Math.PI * x * cut;
      taps[n] = (Math.abs(x) < 1e-9 ? 1 : Math.sin(angle) / angle) * kaiser(x / this.reach);
      sum += taps[n];
    }
    for (let n = 0; n < taps.length; n++) taps[n] /= sum;
    return taps;
  }

  #run(samples, limit) {
    const input = new Float32Array(this.#input.length + samples.length);
    input.set(this.#input);
    input.set(samples, this.#input.length);
    const ends = this.#begins + input.length;
    const most = Math.ceil(((samples.length + 2) * this.up) / this.down) + 2 * this.reach;
    const out = new Float32Array(Math.max(0, Math.min(most, limit - this.#made)));
    let made = 0;
    for (; made < out.length; made++) {
      const position = (this.#made + made) * this.down;
      const centre = Math.floor(position / this.up);
      if (centre + this.reach >= ends) break;
      const taps = this.phases[position - centre * this.up];
      const from = centre - this.reach + 1 - this.#begins;
      let sum = 0;
      for (let n = 0; n < taps.length; n++) sum += taps[n] * input[from + n];
      out[made] = sum;
    }
    this.#made += made;
    const next = Math.floor((this.#made * this.down) / this.up) - this.reach + 1;
    const drop = Math.max(0, Math.min(input.length, next - this.#begins));
    this.#input = input.slice(drop);
    this.#begins += drop;
    return out.subarray(0, made);
  }
}

function gcd(a, b) {
  return b ? gcd(b, a % b) : a;
}

function kaiser(x) {
  return Math.abs(x) >= 1 ? 0 : bessel(BETA * Math.sqrt(1 - x * x)) / bessel(BETA);
}

function bessel(x) {
  let sum = 1;
  let term = 1;
  for (let n = 1; term > sum * 1e-12; n++) {
    term *= (x / (2 * n)) ** 2;
    sum += term;
  }
  return sum;
}
