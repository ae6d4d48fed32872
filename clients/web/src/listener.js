// Listener: receives and plays the speech of all clients of a server, over /v1/listen.

import { defaultServer } from "./address.js";
import { Connection } from "./connection.js";
import { AccessDenied } from "./errors.js";

const DEFAULTS = {
  connectTimeoutMs: 10_000,
  pingMs: 10_000,
  backoffMs: 500, // before reconnecting; it doubles
  mostBackoffMs: 10_000,
};

/**
 * Plays everything through a Player, and reconnects automatically, without a limit. Fires `state`
 * (see `state`), `segment` (with `text`, when its playback starts) and `quiet` (nothing is playing).
 *
 * Audio that arrives while the browser does not allow playback is dropped.
 */
export class Listener extends EventTarget {
  /** "stopped", "connecting", "listening", "waiting" (to reconnect) or "refused" (the same). */
  state = "stopped";
  /** The error of the last connection that ended. */
  error = null;
  #options;
  #player;
  #connection = null;
  #tracks = new Map(); // tracks of streams that still arrive or play, by their ids
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
   * @param {typeof WebSocket} [options.WebSocket]
   */
  constructor(player, options = {}) {
    super();
    this.#player = player;
    this.#options = { ...DEFAULTS, WebSocket: globalThis.WebSocket, ...options };
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
      for (const track of this.#tracks.values()) track.end();
      this.#tracks.clear();
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
    const track = this.#tracks.get(message.stream);
    switch (message.type) {
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
        track?.write(message.pcm, message.first_sample);
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
    const before = this.#mode === "mix" ? this.#tracks.get(after) : this.#last;
    const track = this.#player.track({ sampleRate: this.#sampleRate, after: before });
    this.#tracks.set(stream, track);
    this.#last = track;
    track.addEventListener("segment", ({ text, firstSample }) => {
      this.dispatchEvent(Object.assign(new Event("segment"), { text, firstSample, stream }));
    });
    track.finished.then(() => {
      if (this.#tracks.get(stream) === track) this.#tracks.delete(stream);
      if (this.#last === track) this.#last = null;
      if (!this.#player.stats.tracks) this.dispatchEvent(new Event("quiet"));
    });
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
