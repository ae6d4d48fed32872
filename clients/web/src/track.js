// Track: one stream of audio in a Player, from arriving bytes to the playback position.

import { Captions } from "./captions.js";
import { PlayerFull, UsageError } from "./errors.js";
import { Resampler } from "./resample.js";

/**
 * Created by `Player.track`. Fires `begin` (the first sample is played), `segment` (with `text` and
 * `firstSample`, when that sample is played), `underrun`, `error` (it was dropped), and `end`.
 */
export class Track extends EventTarget {
  #player;
  #resampler = null;
  #meter;
  #threshold; // ms, as the worklet knows it
  #base = null; // position of the first received sample in the utterance
  #written = 0; // samples received, at the track's rate
  #handed = 0; // samples sent to the worklet, at the context's rate
  #run = null; // {frame, sample}: where rendering last started
  #still = 0; // samples rendered when rendering last stopped
  #captions = new Captions();
  #ended = false;
  #over = null; // the worklet's last report
  #begun = false;
  #finish;

  /** Use `Player.track`. */
  constructor(player, id, sampleRate, threshold) {
    super();
    this.#player = player;
    this.id = id;
    this.sampleRate = sampleRate;
    this.underruns = 0;
    /** The context's time, in seconds, at which the first sample was rendered; null before. */
    this.startTime = null;
    this.#meter = player.jitter.meter();
    this.#threshold = threshold;
    if (sampleRate !== player.sampleRate) {
      this.#resampler = new Resampler(sampleRate, player.sampleRate);
    }
    /** Fulfilled with `{samples, stopped, underruns}` when the last sample was played. */
    this.finished = new Promise((resolve) => (this.#finish = resolve));
  }

  /** Samples of the utterance played so far, at the track's rate. */
  get heard() {
    const rendered = this.#run
      ? this.#run.sample + Math.max(0, this.#player.heardFrame - this.#run.frame)
      : this.#still;
    const most = this.#over?.sample ?? this.#handed;
    const samples = Math.floor((Math.min(rendered, most) * this.sampleRate) / this.#player.sampleRate);
    return (this.#base ?? 0) + Math.min(samples, this.#written);
  }

  /** Milliseconds of audio received but not played yet. */
  get bufferedMs() {
    const end = (this.#base ?? 0) + this.#written;
    return this.#over ? 0 : (1e3 * (end - this.heard)) / this.sampleRate;
  }

  /** Segments whose playback has started; the last one may have been interrupted. */
  get segments() {
    return this.#captions.heard;
  }

  get ended() {
    return this.#ended;
  }

  /**
   * @param {Int16Array | Float32Array | Uint8Array} pcm mono; bytes are 16-bit little-endian.
   * @param {number} [firstSample] its position in the utterance; default: after the samples so far.
   */
  write(pcm, firstSample) {
    if (this.#ended) return;
    let samples = pcm;
    if (pcm instanceof Uint8Array) {
      if (pcm.length % 2) throw new UsageError(`${pcm.length} bytes are not whole 16-bit samples.`);
      const own = pcm.byteOffset % 2 ? pcm.slice() : pcm;
      samples = new Int16Array(own.buffer, own.byteOffset, own.length / 2);
    } else if (!(pcm instanceof Int16Array || pcm instanceof Float32Array)) {
      throw new UsageError("pcm is not an Int16Array, Float32Array or Uint8Array.");
    }
    this.#base ??= firstSample ?? 0;
    const ms = (1e3 * samples.length) / this.sampleRate;
    this.#meter.arrived(performance.now(), ms);
    this.#tune();
    this.#written += samples.length;
    this.#hand(this.#resampler ? this.#resampler.push(toFloat(samples)) : samples);
  }

  /** @param {string} text starts at sample `firstSample` of the utterance. */
  segment(text, firstSample) {
    this.#captions.add({ text, firstSample });
  }

  /** Skips the next `ms` of what was written but not played yet, because it is late. */
  skip(ms) {
    const count = Math.round((ms * this.#player.sampleRate) / 1e3);
    if (count > 0) this.#player.send({ type: "skip", id: this.id, count });
  }

  /** Ends the track; what was written is played to its last sample. */
  end() {
    if (this.#ended) return;
    if (this.#resampler) this.#hand(this.#resampler.flush());
    this.#ended = true;
    this.#player.send({ type: "end", id: this.id });
  }

  /**
   * Barge-in: fades out and drops the rest.
   *
   * @param {number} [fadeMs]
   */
  stop(fadeMs = 20) {
    this.#ended = true;
    const fade = Math.round((fadeMs * this.#player.sampleRate) / 1e3);
    this.#player.send({ type: "stop", id: this.id, fade });
  }

  /** Fires due events; called by the player. Returns false after the end. */
  tick() {
    const heard = this.heard;
    if (!this.#begun && heard > (this.#base ?? 0)) {
      this.#begun = true;
      this.dispatchEvent(new Event("begin"));
    }
    for (const { text, firstSample } of this.#captions.advance(heard)) {
      this.dispatchEvent(Object.assign(new Event("segment"), { text, firstSample }));
    }
    if (!this.#over || this.#player.heardFrame < this.#over.frame) return true;
    this.dispatchEvent(new Event("end"));
    this.#finish({
      samples: heard,
      stopped: this.#over.stopped,
      underruns: this.underruns,
    });
    return false;
  }

  /** Handles a report of the worklet; called by the player. */
  report(report) {
    if (report.type === "run") {
      this.#run = report;
      this.startTime ??= report.frame / this.#player.sampleRate;
    } else if (report.type === "gap") {
      this.underruns = report.underruns;
      this.#still = report.sample;
      this.#run = null; // slightly early, which captions cannot show
      this.dispatchEvent(new Event("underrun"));
    } else if (report.type === "over") {
      this.#over = { ...report, frame: report.frame ?? 0 };
      this.#ended = true;
      this.#player.jitter.over(this.#meter, this.#written > 0);
    } else if (report.type === "full") {
      const seconds = report.waiting / this.#player.sampleRate;
      this.#player.fail(this, new PlayerFull(`${seconds.toFixed(0)} s of audio are waiting.`));
    }
  }

  /** The player was closed. */
  abandon() {
    this.#over ??= { frame: 0, sample: this.#still, stopped: true };
    this.#finish({ samples: this.heard, stopped: true, underruns: this.underruns });
  }

  #hand(samples) {
    if (!samples.length) return;
    this.#handed += samples.length;
    // Copied, since a message would copy the view's whole buffer, and the caller keeps its own.
    const own = samples.slice();
    this.#player.send({ type: "pcm", id: this.id, samples: own }, [own.buffer]);
  }

  #tune() {
    const wanted = Math.max(this.#player.jitter.targetMs, this.#meter.targetMs);
    if (wanted - this.#threshold < 1) return; // within an utterance it only grows
    this.#threshold = wanted;
    const threshold = Math.round((wanted * this.#player.sampleRate) / 1e3);
    this.#player.send({ type: "threshold", id: this.id, threshold });
  }
}

function toFloat(samples) {
  if (samples instanceof Float32Array) return samples;
  const floats = new Float32Array(samples.length);
  for (let n = 0; n < samples.length; n++) floats[n] = samples[n] / 32768;
  return floats;
}
