// Client: speech from an rt-drama3 server over its native protocol, /v1/stream.

import { defaultServer, routeUrl } from "./address.js";
import { Connection } from "./connection.js";
import { BadServerMessage, ClientClosed, ConnectFailed, serverError } from "./errors.js";
import { Speech } from "./speech.js";

const MAX_IDLE = 2; // idle connections kept open
const DEFAULTS = {
  connectTimeoutMs: 10_000,
  timeoutMs: 30_000, // without a message that the server owes
  queueTimeoutMs: 120_000, // the same while the utterance is queued
  cancelTimeoutMs: 2_000, // for the response to a cancel
  pingMs: 5_000,
  attempts: 3, // of an utterance before its first audio
  backoffMs: 100, // between attempts; it doubles, up to 2 s
  bufferBytes: 8 << 20, // audio that waits to be iterated
};

export class Client {
  #idle = [];
  #busy = new Set();
  #closed = false;

  /**
   * @param {object} [options]
   * @param {string} [options.server] its address; default: the page's own server.
   * @param {string} [options.key] API key.
   * @param {typeof WebSocket} [options.WebSocket] for runtimes without one.
   * @param {typeof fetch} [options.fetch]
   *
   * Timeouts and limits: see `DEFAULTS`.
   */
  constructor(options = {}) {
    this.settings = { ...DEFAULTS, ...defined(options) };
    this.server = options.server ?? defaultServer();
    this.key = options.key || null;
    this.WebSocket = options.WebSocket ?? globalThis.WebSocket;
    this.fetch = options.fetch ?? globalThis.fetch?.bind(globalThis);
    routeUrl(this.server, "", "ws"); // an invalid address throws here
  }

  /** Opens a connection before the first utterance. */
  async connect() {
    if (!this.#idle.some((one) => one.alive)) this.release(await this.acquire());
  }

  /**
   * Starts an utterance whose text is pushed.
   *
   * @param {object} [options] fields of the protocol's `start`, such as `sampleRate`, `voice`.
   * @returns {Speech}
   */
  stream(options = {}) {
    return new Speech(this, options);
  }

  /**
   * Starts an utterance.
   *
   * @param {string | Iterable<string> | AsyncIterable<string>} text its parts may be split anywhere.
   * @param {object} [options] as with `stream`.
   * @returns {Speech}
   */
  speak(text, options = {}) {
    if (typeof text === "string") return new Speech(this, { ...options, text, final: true });
    const speech = this.stream(options);
    speech.pour(text);
    return speech;
  }

  /** @returns {Promise<{id: string, texts: string[], seconds: number}[]>} the stored voices. */
  async voices() {
    return (await this.#get("v1/voices")).data;
  }

  /** @returns {Promise<{id: string}[]>} the models. */
  async models() {
    return (await this.#get("v1/models")).data;
  }

  /** Closes its connections; running utterances end with an error. */
  close() {
    this.#closed = true;
    for (const connection of this.#idle.splice(0)) connection.close();
    for (const connection of [...this.#busy]) connection.fail(new ClientClosed());
  }

  /** Returns an idle or new connection; used by utterances. */
  async acquire(fresh = false) {
    if (this.#closed) throw new ClientClosed();
    while (!fresh && this.#idle.length) {
      const connection = this.#idle.pop();
      connection.onclose = null;
      if (connection.alive) {
        connection.reused = true;
        this.#busy.add(connection);
        return connection;
      }
    }
    const connection = await Connection.open({
      server: this.server,
      route: "v1/stream",
      key: this.key,
      timeoutMs: this.settings.connectTimeoutMs,
      WebSocket: this.WebSocket,
      fetch: this.fetch,
    });
    if (this.#closed) {
      connection.close();
      throw new ClientClosed();
    }
    this.#busy.add(connection);
    return connection;
  }

  /** Closes a connection that cannot be reused; used by utterances. */
  forget(connection) {
    this.#busy.delete(connection);
    connection.close();
  }

  /** Keeps a connection for reuse; used by utterances. */
  release(connection) {
    connection.unwatch();
    connection.onmessage = null;
    this.#busy.delete(connection);
    if (this.#closed || this.#idle.length >= MAX_IDLE) {
      connection.close();
      return;
    }
    connection.onclose = () => (this.#idle = this.#idle.filter((one) => one !== connection));
    if (connection.alive) this.#idle.push(connection);
  }

  async #get(route) {
    const url = routeUrl(this.server, route, "http");
    let answer;
    try {
      answer = await this.fetch(url, {
        headers: this.key ? { Authorization: `Bearer ${this.key}` } : {},
        signal: AbortSignal.timeout(this.settings.timeoutMs),
      });
    } catch (error) {
      throw new ConnectFailed(`${url} could not be reached (${error.message}).`);
    }
    let body;
    try {
      body = await answer.json();
    } catch {
      throw new BadServerMessage(`${url} responded with HTTP status ${answer.status} without JSON.`);
    }
    if (!answer.ok) throw serverError({ ...(body.error ?? body), scope: "request" });
    return body;
  }
}

function defined(options) {
  return Object.fromEntries(
    Object.entries(options).filter(([name, value]) => name in DEFAULTS && value !== undefined),
  );
}
