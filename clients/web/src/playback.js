// Playback: plays an utterance of a Client through a Player.

import { now } from "./connection.js";

/**
 * Plays an utterance while it is generated. Fires `begin`, `segment` and `end` like its track.
 */
export class Playback extends EventTarget {
  #player;
  #track = null;
  #stopped = false;
  #error = null;
  #began = now();

  /**
   * @param {import("./player.js").Player} player
   * @param {import("./speech.js").Speech} speech with the `format` pcm (the default).
   */
  constructor(player, speech) {
    super();
    this.#player = player;
    this.speech = speech;
    /** Milliseconds until the first audio arrived, and until its first sample was played. */
    this.firstAudioMs = null;
    this.firstHeardMs = null;
    /** Fulfilled with `{samples, seconds, segments, stopped, underruns}` at the end of playback. */
    this.finished = this.#run();
    /**
     * Fulfilled when nothing of it sounds any more. After an error `finished` rejects while what was
     * received is still played, and can be stopped.
     */
    this.quiet = this.finished.catch(() => this.#track?.finished).then(() => {});
  }

  /** Samples of the utterance played so far, at its rate. */
  get heard() {
    return this.#track?.heard ?? 0;
  }

  /** Segments whose playback has started. */
  get segments() {
    return this.#track?.segments ?? [];
  }

  get bufferedMs() {
    return this.#track?.bufferedMs ?? 0;
  }

  /**
   * Barge-in: fades out, drops what is buffered, and cancels the utterance.
   *
   * @param {number} [fadeMs]
   * @returns {Promise<{samples: number, seconds: number, segments: object[]}>} what was played.
   */
  async stop(fadeMs = 20) {
    this.#stopped = true;
    this.#track?.stop(fadeMs);
    this.speech.cancel();
    try {
      return await this.finished;
    } catch {
      // `finished` rejects with the error; what was played is returned nevertheless.
      return this.#heardSoFar();
    }
  }

  async #heardSoFar() {
    const nothing = { samples: 0, stopped: true, underruns: 0 };
    return this.#report(this.#track ? await this.#track.finished : nothing);
  }

  async #run() {
    try {
      for await (const event of this.speech) {
        if (this.#stopped) break;
        if (event.type === "audio") this.#audio(event);
        else if (event.type === "segment") this.#opened().segment(event.text, event.firstSample);
      }
    } catch (error) {
      this.#track?.end(); // play what was received instead of cutting off a word
      throw error;
    }
    if (this.#error) throw this.#error;
    if (!this.#track) return this.#report({ samples: 0, stopped: this.#stopped, underruns: 0 });
    if (!this.#stopped) this.#track.end();
    return this.#report(await this.#track.finished);
  }

  #audio(event) {
    this.firstAudioMs ??= now() - this.#began;
    this.#opened().write(event.audio, event.firstSample);
  }

  #opened() {
    if (this.#track) return this.#track;
    const track = this.#player.track({ sampleRate: this.speech.sampleRate });
    track.addEventListener("begin", () => {
      this.firstHeardMs = now() - this.#began;
      if (!this.#stopped) this.dispatchEvent(new Event("begin"));
    });
    track.addEventListener("segment", ({ text, firstSample }) => {
      if (this.#stopped) return; // the caption may already belong to the next utterance
      this.dispatchEvent(Object.assign(new Event("segment"), { text, firstSample }));
    });
    track.addEventListener("error", ({ error }) => {
      this.#error = error;
      this.speech.cancel();
    });
    track.addEventListener("end", () => this.dispatchEvent(new Event("end")));
    this.#track = track;
    return track;
  }

  #report({ samples, stopped, underruns }) {
    const seconds = samples ? samples / this.speech.sampleRate : 0;
    return { samples, seconds, segments: this.segments, stopped, underruns };
  }
}

/** The rates at which the server provides PCM. */
export const SAMPLE_RATES = [8000, 16000, 22050, 24000, 32000, 44100, 48000];

/**
 * Requests an utterance at the rate that the player plays without resampling, and plays it.
 *
 * @param {import("./player.js").Player} player
 * @param {import("./client.js").Client} client
 * @param {string | Iterable<string> | AsyncIterable<string>} text
 * @param {object} [options] as with `Client.speak`.
 * @returns {Playback}
 */
export function say(player, client, text, options = {}) {
  const sampleRate = SAMPLE_RATES.includes(player.sampleRate) ? player.sampleRate : 48000;
  const request = { ...options, sampleRate: options.sampleRate ?? sampleRate, format: "pcm" };
  return new Playback(player, client.speak(text, request));
}
