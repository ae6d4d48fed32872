// The audio worklet, loaded by Player: a Mixer between its message port and its output. It is one
// file without imports, since bundlers copy it unchanged.

// A queue of samples: chunks in, samples out, without extra copies.

/** A bounded queue of int16 or float32 samples. */
export class Ring {
  #chunks = [];
  #first = 0; // index of the first remaining chunk; the array is trimmed now and then
  #at = 0; // index of the next sample in it

  /** @param {number} most capacity in samples. */
  constructor(most) {
    this.most = most;
    this.length = 0;
  }

  /**
   * @param {Int16Array | Float32Array} samples kept, not copied.
   * @returns {boolean} false if there was no room.
   */
  push(samples) {
    if (this.length + samples.length > this.most) return false;
    if (samples.length) this.#chunks.push(samples);
    this.length += samples.length;
    return true;
  }

  /**
   * Adds samples to `out`.
   *
   * @param {Float32Array} out
   * @param {number} from index in `out`.
   * @param {(index: number) => number} [gain] gain of the index-th sample of this call.
   * @returns {number} the number of samples.
   */
  mixInto(out, from, gain) {
    let done = 0;
    const room = out.length - from;
    while (done < room && this.length) {
      const chunk = this.#chunks[this.#first];
      const count = Math.min(room - done, chunk.length - this.#at);
      const scale = chunk instanceof Int16Array ? 1 / 32768 : 1;
      for (let n = 0; n < count; n++) {
        const value = chunk[this.#at + n] * scale;
        out[from + done + n] += gain ? value * gain(done + n) : value;
      }
      done += count;
      this.length -= count;
      this.#at += count;
      if (this.#at === chunk.length) this.#next();
    }
    return done;
  }

  /**
   * Drops samples from its beginning.
   *
   * @param {number} count
   * @returns {number} the number of samples that it had.
   */
  drop(count) {
    const all = Math.min(count, this.length);
    for (let left = all; left > 0;) {
      const chunk = this.#chunks[this.#first];
      const some = Math.min(left, chunk.length - this.#at);
      left -= some;
      this.#at += some;
      if (this.#at === chunk.length) this.#next();
    }
    this.length -= all;
    return all;
  }

  clear() {
    this.#chunks = [];
    this.#first = this.#at = this.length = 0;
  }

  #next() {
    this.#chunks[this.#first++] = null;
    this.#at = 0;
    if (this.#first >= 64) {
      this.#chunks.splice(0, this.#first);
      this.#first = 0;
    }
  }
}

// The work of the audio worklet, independent of worklets: mixes several streams, with a start
// threshold, underruns, fades, and reports of which sample is rendered at which frame.

const WAITING = 0; // for samples, before the start and after an underrun
const PLAYING = 1;
const FADING = 2;

class Voice {
  constructor(id, { threshold, delay, most, after = null }) {
    this.id = id;
    this.after = after; // id of a voice that has to finish first
    this.ring = new Ring(most);
    this.threshold = threshold; // samples to buffer before a start
    this.delay = delay; // further frames before the first one
    this.state = WAITING;
    this.since = null; // frame at which buffering began
    this.due = null; // frame at which it starts
    this.position = 0; // samples rendered or skipped
    this.skipped = false; // some, since the last report of a position
    this.underruns = 0;
    this.ended = false; // no more samples follow
    this.fade = 0; // length of a running fade in samples
    this.faded = 0; // samples of it rendered
  }
}

export class Mixer {
  #voices = new Map();

  /**
   * @param {(report: object) => void} report takes `{type: "run" | "gap" | "over" | "full", id,
   *     frame, sample, ...}`; frames are the context's.
   */
  constructor(report) {
    this.report = report;
  }

  get size() {
    return this.#voices.size;
  }

  /**
   * @param {{type: "open" | "pcm" | "skip" | "threshold" | "end" | "stop"} & Record<string, any>}
   *     message `open`: id, threshold, delay, most, after; `pcm`: id, samples; `skip`: id, count;
   *     `threshold`: id, threshold; `end`: id; `stop`: id or null for all, fade. Numbers are samples.
   */
  take(message) {
    if (message.type === "open") {
      this.#voices.set(message.id, new Voice(message.id, message));
      return;
    }
    if (message.type === "stop" && message.id === null) {
      for (const voice of [...this.#voices.values()]) this.#stop(voice, message.fade);
      return;
    }
    const voice = this.#voices.get(message.id);
    if (!voice) return; // it was stopped while the message was in transit
    if (message.type === "pcm") this.#push(voice, message.samples);
    else if (message.type === "skip") this.#skip(voice, message.count);
    else if (message.type === "threshold") voice.threshold = message.threshold;
    else if (message.type === "end") voice.ended = true;
    else if (message.type === "stop") this.#stop(voice, message.fade);
  }

  /**
   * Renders one block.
   *
   * @param {Float32Array} out zeros; every stream is added.
   * @param {number} frame the context's frame of its first sample.
   */
  render(out, frame) {
    for (const voice of this.#voices.values()) {
      if (voice.state === WAITING) this.#wait(voice, frame);
    }
    for (const voice of this.#voices.values()) {
      if (voice.state === PLAYING) this.#play(voice, out, frame);
      else if (voice.state === FADING) this.#fadeOut(voice, out, frame);
    }
  }

  #push(voice, samples) {
    if (voice.state === FADING || voice.ended) return;
    if (!voice.ring.push(samples)) {
      this.report({ type: "full", id: voice.id, waiting: voice.ring.length });
    }
  }

  #skip(voice, count) {
    if (voice.state === FADING) return;
    voice.position += voice.ring.drop(count);
    voice.skipped = true;
  }

  #stop(voice, fade) {
    if (voice.state === PLAYING && fade > 0) {
      voice.state = FADING;
      voice.fade = fade;
    } else if (voice.state !== FADING) {
      this.#over(voice, null, true); // it is silent already
    }
  }

  #wait(voice, frame) {
    const { ring } = voice;
    if (!ring.length) {
      if (voice.ended) this.#over(voice, frame, false);
      return;
    }
    voice.since ??= frame;
    const enough = ring.length >= voice.threshold || frame - voice.since >= voice.threshold;
    if (voice.due === null && (enough || voice.ended)) {
      voice.due = frame + voice.delay;
    }
    // The delay runs while waiting for another voice: it delays everything, without adding gaps.
    if (voice.due !== null && frame >= voice.due && !this.#sounds(voice.after)) {
      voice.state = PLAYING;
      voice.delay = 0;
      voice.since = voice.due = null;
      this.#run(voice, frame);
    }
  }

  #run(voice, frame) {
    voice.skipped = false;
    this.report({ type: "run", id: voice.id, frame, sample: voice.position });
  }

  /** Whether a voice has samples; one that pauses in the middle lets others pass. */
  #sounds(id) {
    const voice = this.#voices.get(id);
    return voice !== undefined && (voice.ring.length > 0 || voice.state === FADING);
  }

  #play(voice, out, frame) {
    if (voice.skipped) this.#run(voice, frame);
    const count = voice.ring.mixInto(out, 0);
    voice.position += count;
    if (voice.ring.length) return;
    if (voice.ended) {
      this.#over(voice, frame + count, false);
    } else if (count < out.length) {
      voice.state = WAITING;
      voice.underruns += 1;
      this.report({
        type: "gap",
        id: voice.id,
        frame: frame + count,
        sample: voice.position,
        underruns: voice.underruns,
      });
    }
  }

  #fadeOut(voice, out, frame) {
    const part = out.subarray(0, Math.min(out.length, voice.fade - voice.faded));
    const count = voice.ring.mixInto(part, 0, (n) => 1 - (voice.faded + n + 1) / voice.fade);
    voice.position += count;
    voice.faded += part.length;
    if (voice.faded >= voice.fade || count < part.length) this.#over(voice, frame + count, true);
  }

  #over(voice, frame, stopped) {
    this.#voices.delete(voice.id);
    voice.ring.clear();
    const { id, position: sample, underruns } = voice;
    this.report({ type: "over", id, frame, sample, underruns, stopped });
  }
}

// Outside of a worklet, for example in tests, there is nothing to register with.
if (globalThis.registerProcessor) {
  class RtDrama3Processor extends AudioWorkletProcessor {
    #open = true;

    constructor() {
      super();
      const mixer = new Mixer((report) => this.port.postMessage(report));
      this.port.onmessage = ({ data }) => {
        if (data.type === "close") this.#open = false;
        else mixer.take(data);
      };
      this.mixer = mixer;
    }

    process(inputs, outputs) {
      const [first, ...others] = outputs[0];
      this.mixer.render(first, currentFrame);
      for (const channel of others) channel.set(first);
      return this.#open;
    }
  }

  registerProcessor("rt-drama3", RtDrama3Processor);
}
