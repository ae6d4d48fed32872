// What the audio worklet does, without the worklet: several streams into one, with a start
// threshold, underruns, fades, and reports of which sample is rendered at which frame.

import { Ring } from "./ring.js";

const WAITING = 0; // for sound, before the start and after an underrun
const PLAYING = 1;
const FADING = 2;

class Voice {
  constructor(id, { threshold, delay, most, after = null }) {
    this.id = id;
    this.after = after; // id of a voice whose sound goes first
    this.ring = new Ring(most);
    this.threshold = threshold; // samples to collect before a start
    this.delay = delay; // further frames before the first one
    this.state = WAITING;
    this.since = null; // frame at which the collecting began
    this.due = null; // frame at which it starts
    this.position = 0; // samples rendered
    this.underruns = 0;
    this.ended = false; // nothing more will come
    this.fade = 0; // samples that a running fade has in all
    this.faded = 0; // and has behind it
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
   * @param {{type: "open" | "pcm" | "threshold" | "end" | "stop"} & Record<string, any>} message
   *     `open`: id, threshold, delay, most, after; `pcm`: id, samples; `threshold`: id, threshold;
   *     `end`: id; `stop`: id or null for all, fade. Numbers are samples.
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
    if (!voice) return; // it was stopped while the message was on its way
    if (message.type === "pcm") this.#push(voice, message.samples);
    else if (message.type === "threshold") voice.threshold = message.threshold;
    else if (message.type === "end") voice.ended = true;
    else if (message.type === "stop") this.#stop(voice, message.fade);
  }

  /**
   * Renders one block.
   *
   * @param {Float32Array} out zeros; every stream is added.
   * @param {number} frame of the context at its first sample.
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

  #stop(voice, fade) {
    if (voice.state === PLAYING && fade > 0) {
      voice.state = FADING;
      voice.fade = fade;
    } else if (voice.state !== FADING) {
      this.#over(voice, null, true); // silent as it is
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
    // The delay runs while another voice is waited for: it shifts all sound, and parts nothing.
    if (voice.due !== null && frame >= voice.due && !this.#sounds(voice.after)) {
      voice.state = PLAYING;
      voice.delay = 0;
      voice.since = voice.due = null;
      this.report({ type: "run", id: voice.id, frame, sample: voice.position });
    }
  }

  /** Whether a voice has something to sound; one that pauses in the middle lets others pass. */
  #sounds(id) {
    const voice = this.#voices.get(id);
    return voice !== undefined && (voice.ring.length > 0 || voice.state === FADING);
  }

  #play(voice, out, frame) {
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
