// Player: an AudioContext with our worklet, which mixes any number of tracks.

import { AutoplayBlocked, ClientClosed, PlayerUnavailable, UsageError } from "./errors.js";
import { SharedJitter } from "./jitter.js";
import { Track } from "./track.js";

const TICK_MS = 20; // interval of checking the playback position
const MAX_SECONDS = 600; // buffered in one track: the longest utterance of the server
const UNBLOCK_MS = 500; // time a context may take to start

/**
 * Plays tracks. Fires `state` when playback becomes possible or impossible, and `error` (with
 * `error`) when a track had to be dropped.
 */
export class Player extends EventTarget {
  #context;
  #node;
  #gain;
  #tracks = new Map();
  #timer = null;
  #count = 0;
  #closed = false;
  #own;
  #pastUnderruns = 0; // of finished tracks

  /**
   * @param {object} [options]
   * @param {number} [options.sampleRate] rate of the context in Hz; the streams' rate avoids
   *     resampling. If the browser refuses it, its own is used.
   * @param {AudioContext} [options.context] context to use instead of a new one.
   * @param {AudioNode} [options.destination] default: the context's.
   * @param {AudioContextLatencyCategory | number} [options.latencyHint]
   * @param {number} [options.volume] 0 to 4; 1 leaves the samples unchanged.
   * @param {number} [options.delayMs] delay before the first sample of every track.
   * @param {object} [options.jitter] bounds of `JitterMeter`.
   * @param {string | URL} [options.processorUrl] URL of `processor.js`, if a bundler moved it.
   * @returns {Promise<Player>} possibly still suspended: see `state` and `resume`.
   */
  static async open(options = {}) {
    if (!globalThis.AudioContext || !globalThis.AudioWorkletNode) {
      throw new PlayerUnavailable("this page has no AudioWorklet.");
    }
    const context = options.context ?? makeContext(options);
    const url = options.processorUrl ?? new URL("./processor.js", import.meta.url);
    try {
      await context.audioWorklet.addModule(url);
    } catch (error) {
      if (!options.context) await context.close();
      throw new PlayerUnavailable(
        `the audio worklet ${url} could not be loaded (${error.message}).`,
        "Serve processor.js next to the module, or pass its URL as processorUrl.",
      );
    }
    return new Player(context, options);
  }

  /** Use `Player.open`. */
  constructor(context, options) {
    super();
    this.#context = context;
    this.#own = !options.context;
    this.delayMs = options.delayMs ?? 0;
    this.jitter = new SharedJitter(options.jitter);
    this.#node = new AudioWorkletNode(context, "rt-drama3", {
      numberOfInputs: 0,
      outputChannelCount: [1],
    });
    this.#node.port.onmessage = ({ data }) => this.#report(data);
    this.#gain = new GainNode(context, { gain: 1 });
    this.volume = options.volume ?? 1;
    this.#node.connect(this.#gain).connect(options.destination ?? context.destination);
    context.addEventListener("statechange", this.#changed);
  }

  /** The context's rate in Hz. */
  get sampleRate() {
    return this.#context.sampleRate;
  }

  get context() {
    return this.#context;
  }

  /** "running", "suspended" while the browser does not allow playback, or "closed". */
  get state() {
    if (this.#closed) return "closed";
    return this.#context.state === "running" ? "running" : "suspended";
  }

  get volume() {
    return this.#gain.gain.value;
  }

  set volume(value) {
    if (!(value >= 0 && value <= 4)) throw new UsageError(`the volume is ${value}.`, "Use 0 to 4.");
    this.#gain.gain.value = value;
  }

  /** The frame of the context that is being output now. */
  get heardFrame() {
    const context = this.#context;
    const latency = context.outputLatency || context.baseLatency || 0;
    let time = context.currentTime - latency;
    const stamp = context.getOutputTimestamp?.();
    if (stamp?.performanceTime > 0 && stamp.contextTime > 0 && context.state === "running") {
      const since = (performance.now() - stamp.performanceTime) / 1e3;
      const stamped = stamp.contextTime + since;
      // Some browsers do not update the stamp for a while; then the latency is more accurate.
      if (Math.abs(stamped - time) < 1) time = Math.min(stamped, context.currentTime);
    }
    return Math.max(0, Math.floor(time * this.sampleRate));
  }

  /** Statistics for developers; times in milliseconds. */
  get stats() {
    let underruns = this.#pastUnderruns;
    let bufferedMs = 0;
    for (const track of this.#tracks.values()) {
      underruns += track.underruns;
      bufferedMs = Math.max(bufferedMs, track.bufferedMs);
    }
    return {
      sampleRate: this.sampleRate,
      tracks: this.#tracks.size,
      underruns,
      bufferedMs,
      thresholdMs: this.jitter.targetMs,
      latencyMs: 1e3 * (this.#context.outputLatency || this.#context.baseLatency || 0),
    };
  }

  /**
   * Starts playback; call it in a click or key handler, as often as you like.
   *
   * @throws {AutoplayBlocked} the browser does not allow it.
   */
  async resume() {
    this.#check();
    if (this.state === "running") return;
    // Without a click, Chromium's promise stays pending, so the state is checked as well.
    const waiting = new Promise((resolve) => setTimeout(resolve, UNBLOCK_MS));
    await Promise.race([this.#context.resume().catch(() => {}), waiting]);
    if (this.state !== "running") throw new AutoplayBlocked();
  }

  /**
   * Creates a track, which is mixed with the others.
   *
   * @param {object} [options]
   * @param {number} [options.sampleRate] rate of the track in Hz; default: the context's.
   * @param {Track} [options.after] a track that has to finish first.
   * @returns {Track}
   */
  track({ sampleRate = this.sampleRate, after } = {}) {
    this.#check();
    if (!(Number.isInteger(sampleRate) && sampleRate >= 3_000 && sampleRate <= 768_000)) {
      throw new UsageError(`invalid sample rate ${sampleRate} of a track.`, "Use Hz.");
    }
    const id = this.#count++;
    const thresholdMs = this.jitter.targetMs;
    const track = new Track(this, id, sampleRate, thresholdMs);
    this.#tracks.set(id, track);
    this.send({
      type: "open",
      id,
      threshold: Math.round((thresholdMs * this.sampleRate) / 1e3),
      delay: Math.round((this.delayMs * this.sampleRate) / 1e3),
      most: MAX_SECONDS * this.sampleRate,
      after: after ? after.id : null,
    });
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS);
    return track;
  }

  /**
   * Silences everything: fades out what is playing and drops what is buffered.
   *
   * @param {number} [fadeMs]
   */
  stop(fadeMs = 20) {
    for (const track of this.#tracks.values()) track.stop(fadeMs);
  }

  /** Stops immediately and releases the audio device. */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#timer);
    this.#context.removeEventListener("statechange", this.#changed);
    this.#node.port.postMessage({ type: "close" });
    this.#node.disconnect();
    this.#gain.disconnect();
    for (const track of this.#tracks.values()) track.abandon();
    this.#tracks.clear();
    if (this.#own) await this.#context.close();
  }

  /** Sends a message to the worklet; used by tracks. */
  send(message, moved = []) {
    if (!this.#closed) this.#node.port.postMessage(message, moved);
  }

  /** Drops a track with an error; used by tracks. */
  fail(track, error) {
    if (track.ended) return;
    track.stop();
    track.dispatchEvent(Object.assign(new Event("error"), { error }));
    this.dispatchEvent(Object.assign(new Event("error"), { error, track }));
  }

  #changed = () => this.dispatchEvent(new Event("state"));

  #check() {
    if (this.#closed) throw new ClientClosed("the player was closed.");
  }

  #report(report) {
    this.#tracks.get(report.id)?.report(report);
  }

  #tick() {
    for (const [id, track] of this.#tracks) {
      if (track.tick()) continue;
      this.#tracks.delete(id);
      this.#pastUnderruns += track.underruns;
    }
    if (this.#tracks.size) return;
    clearInterval(this.#timer);
    this.#timer = null;
  }
}

function makeContext({ sampleRate, latencyHint = "interactive" }) {
  try {
    return new AudioContext({ sampleRate, latencyHint });
  } catch (error) {
    if (error.name !== "NotSupportedError") throw error;
    return new AudioContext({ latencyHint }); // tracks are then resampled
  }
}
