// Listener: receives and plays the speech of all clients of a server, over /v1/listen.

import { defaultServer } from "./address.js";
import { Connection } from "./connection.js";
import { AccessDenied } from "./errors.js";

const DEFAULTS = {
  connectTimeoutMs: 10_000,
  pingMs: 10_000,
  backoffMs: 500, // before reconnecting; it doubles
  mostBackoffMs: 10_000,
  lateMs: 2_000, // that speech may be heard late
};
const CHECK_MS = 250; // interval of checking that, while something plays

/**
 * Plays everything through a Player, and reconnects automatically, without a limit. Fires `state`
 * (see `state`), `segment` (with `text`, when its playback starts) and `quiet` (nothing is playing).
 *
 * Audio that arrives while the browser does not allow playback is dropped. If the page or its sound
 * was suspended for longer than `lateMs`, as much of what the server has spoken since is skipped.
 */
export class Listener extends EventTarget {
  /** "stopped", "connecting", "listening", "waiting" (to reconnect) or "refused" (the same). */
  state = "stopped";
  /** The error of the last connection that ended. */
  error = null;
  #options;
  #player;
  #connection = null;
  // Streams that still arrive or play, by their ids, as {track, late}: `late.ms` of their audio are
  // still to be skipped. In a queue, they share it.
  #streams = new Map();
  #late = null; // the same for streams that begin now; null unless what arrives may be old
  #edge = 0; // data of the ping whose pong follows everything that may be old
  #behind = null; // ms that the audio clock was behind the wall clock when nothing was late
  #checking = null;
  #last = null; // the track that started last
  #mode = "queue";
  #sampleRate = 0;
  #failures = 0;
  #timer = null;
  #running = false;
  #turn = 0; // counts calls of `start`: results of earlier ones are ignored

  /**
   * @param {import("./player.js").Player} player
   * @param {object} [options]
   * @param {string} [options.server] default: the page's own.
   * @param {string} [options.key] API key.
   * @param {"mix" | "queue"} [options.mode] default: the server's.
   * @param {number} [options.sampleRate] default: the player's.
   * @param {number} [options.lateMs] speech that is later than this is skipped; default: 2000.
   * @param {typeof WebSocket} [options.WebSocket]
   */
  constructor(player, options = {}) {
    super();
    this.#player = player;
    this.#options = { ...DEFAULTS, WebSocket: globalThis.WebSocket, ...options };
    player.addEventListener("state", () => (player.stats.tracks ? this.#catchUp() : this.#onTime()));
  }

  start() {
    if (this.#running) return;
    this.#running = true;
    this.#turn += 1;
    this.#connect();
  }

  /** Stops listening, with a fade. */
  stop(fadeMs = 20) {
    this.#running = false;
    clearTimeout(this.#timer);
    this.#rest();
    this.#connection?.close();
    this.#connection = null;
    this.#mute(fadeMs);
    this.#set("stopped");
  }

  async #connect() {
    const turn = this.#turn;
    this.#set("connecting");
    const { server, key, mode, sampleRate, connectTimeoutMs, WebSocket } = this.#options;
    const query = new URLSearchParams({ sample_rate: sampleRate ?? this.#player.sampleRate });
    if (mode) query.set("mode", mode);
    let connection;
    try {
      connection = await Connection.open({
        server: server ?? defaultServer(),
        route: `v1/listen?${query}`,
        key: key || null,
        timeoutMs: connectTimeoutMs,
        WebSocket,
        fetch: this.#options.fetch ?? globalThis.fetch?.bind(globalThis),
      });
    } catch (error) {
      if (turn === this.#turn) this.#reconnect(error);
      return;
    }
    if (!this.#running || turn !== this.#turn) {
      connection.close();
      return;
    }
    this.#connection = connection;
    connection.onmessage = (message) => this.#take(message);
    connection.onclose = (error) => {
      this.#connection = null;
      // What was received is played to its end; interrupted streams end here.
      for (const { track } of this.#streams.values()) track.end();
      this.#late = null;
      this.#reconnect(error);
    };
    connection.watch(this.#options.pingMs);
  }

  #reconnect(error) {
    this.error = error;
    if (!this.#running) return;
    const { backoffMs, mostBackoffMs } = this.#options;
    const refused = error instanceof AccessDenied;
    const pause = refused
      ? mostBackoffMs
      : Math.min(mostBackoffMs, backoffMs * 2 ** this.#failures) * (0.75 + Math.random() / 2);
    this.#failures = Math.min(this.#failures + 1, 16);
    this.#set(refused ? "refused" : "waiting");
    this.#timer = setTimeout(() => this.#connect(), pause);
  }

  #take(message) {
    this.#catchUp();
    const stream = this.#streams.get(message.stream);
    const track = stream?.track;
    switch (message.type) {
      case "pong":
        if (message.data === this.#edge) this.#late = null;
        if (!this.#player.stats.tracks) this.#onTime();
        break;
      case "ready":
        this.#failures = 0;
        this.#sampleRate = message.sample_rate;
        this.#mode = message.mode;
        this.#set("listening");
        break;
      case "begin":
        this.#begin(message);
        break;
      case "audio":
        if (stream) this.#write(stream, message.pcm, message.first_sample);
        break;
      case "segment":
        track?.segment(message.text, message.first_sample);
        break;
      case "end":
        // A cancel may follow the end: what has not been played is then dropped as well.
        if (message.cancelled) track?.stop();
        else track?.end();
        break;
      case "stop":
        this.#mute(message.fade_ms);
        break;
    }
  }

  #begin({ stream, after }) {
    if (this.#player.state !== "running") return;
    const mixed = this.#mode === "mix";
    const before = mixed ? this.#streams.get(after)?.track : this.#last;
    const track = this.#player.track({ sampleRate: this.#sampleRate, after: before });
    this.#streams.set(stream, { track, late: this.#late && mixed ? { ...this.#late } : this.#late });
    this.#last = track;
    this.#checking ??= setInterval(() => this.#catchUp(), CHECK_MS);
    track.addEventListener("segment", ({ text, firstSample }) => {
      this.dispatchEvent(Object.assign(new Event("segment"), { text, firstSample, stream }));
    });
    track.finished.then(() => {
      if (this.#streams.get(stream)?.track === track) this.#streams.delete(stream);
      if (this.#last === track) this.#last = null;
      if (this.#player.stats.tracks) return;
      this.#rest();
      this.#onTime();
      this.dispatchEvent(new Event("quiet"));
    });
  }

  #write({ track, late }, pcm, firstSample) {
    const all = pcm.length / 2;
    const skipped = late ? Math.min(all, Math.round((late.ms * this.#sampleRate) / 1e3)) : 0;
    if (skipped) late.ms -= (1e3 * skipped) / this.#sampleRate;
    if (skipped < all) track.write(pcm.subarray(2 * skipped), firstSample + skipped);
  }

  /**
   * Skips what is late. While the page or its sound is suspended, the audio clock stands still and
   * messages wait; how far it fell behind the wall clock is how late they are, at most.
   */
  #catchUp() {
    if (this.#player.state !== "running") return;
    const behind = this.#lag();
    this.#behind = Math.min(this.#behind ?? behind, behind);
    if (behind - this.#behind <= this.#options.lateMs) return;
    this.#skip(behind - this.#behind);
    this.#onTime();
  }

  /** Nothing that is known of is late. */
  #onTime() {
    this.#behind = this.#lag();
  }

  #rest() {
    clearInterval(this.#checking);
    this.#checking = null;
  }

  #lag() {
    return Date.now() - 1e3 * this.#player.context.currentTime;
  }

  #skip(ms) {
    const streams = [...this.#streams.values()];
    const mixed = this.#mode === "mix";
    const shared = { ms: ms + Math.max(0, ...streams.map(({ late }) => late?.ms ?? 0)) };
    for (const stream of streams) {
      const late = mixed ? { ms: ms + (stream.late?.ms ?? 0) } : shared;
      const skipped = Math.min(late.ms, stream.track.bufferedMs);
      stream.track.skip(skipped);
      late.ms -= skipped;
      stream.late = late;
    }
    this.#late = mixed ? { ms } : shared;
    this.#edge += 1; // the answer comes behind everything that the server has sent by now
    this.#connection?.send({ type: "ping", data: this.#edge });
  }

  #mute(fadeMs) {
    this.#player.stop(fadeMs);
  }

  #set(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}
