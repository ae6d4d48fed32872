// One WebSocket: maps out, maps in, and an end that is always told.

import { routeUrl, subprotocols } from "./address.js";
import {
  BadServerMessage,
  ConnectFailed,
  ConnectionLost,
  UsageError,
  closeError,
  serverError,
} from "./errors.js";
import { MsgpackError, decode, encode } from "./msgpack.js";

const OPEN = 1;

/** @returns {number} milliseconds of a steady clock. */
export const now = () => performance.now();

export class Connection {
  /** Takes messages; null while nobody speaks on it. */
  onmessage = null;
  /** Takes the error that ended it, once. */
  onclose = null;
  #socket;
  #error = null;
  #pinger = null;
  #asked = null; // when an unanswered ping was sent
  #heard = now();

  /**
   * @param {object} where
   * @param {string} where.server
   * @param {string} where.route such as "v1/stream?a=b".
   * @param {string | null} where.key
   * @param {number} where.timeoutMs
   * @param {typeof WebSocket} where.WebSocket
   * @param {typeof fetch} [where.fetch] asks why a handshake was refused; null: nobody does.
   * @returns {Promise<Connection>}
   */
  static async open(where) {
    const url = routeUrl(where.server, where.route, "ws");
    const began = now();
    const offered = subprotocols(where.key);
    if (!where.WebSocket) {
      throw new UsageError("this runtime has no WebSocket.", "Pass one as the option WebSocket.");
    }
    let socket;
    try {
      socket = new where.WebSocket(url, offered);
    } catch (error) { // such as a page on https that asks for http
      throw new UsageError(`${url} cannot be opened from here: ${error.message}`);
    }
    socket.binaryType = "arraybuffer";
    const opened = await new Promise((resolve) => {
      const timer = setTimeout(() => resolve(null), where.timeoutMs);
      const end = (result) => () => {
        clearTimeout(timer);
        resolve(result);
      };
      socket.onopen = end(true);
      socket.onerror = socket.onclose = end(false);
    });
    if (opened) return new Connection(socket, now() - began);
    socket.onopen = socket.onerror = socket.onclose = null;
    socket.close();
    if (opened === null) throw new ConnectFailed(`${url} gave no answer in ${where.timeoutMs} ms.`);
    throw (await refusal(where)) ?? new ConnectFailed(`${url} could not be opened.`);
  }

  /** Use `Connection.open`. */
  constructor(socket, connectMs) {
    this.#socket = socket;
    this.connectMs = connectMs;
    this.reused = false;
    socket.onmessage = ({ data }) => this.#take(data);
    socket.onerror = null;
    socket.onclose = ({ code, reason }) => this.#end(closeError(code, reason));
  }

  get alive() {
    return this.#error === null && this.#socket.readyState === OPEN;
  }

  send(message) {
    if (this.alive) this.#socket.send(encode(message));
  }

  /**
   * Asks for a sign of life every `ms`; a peer that gives none for as long is gone. A browser has
   * no pings of its own, and a half-open connection would be waited on for minutes.
   */
  watch(ms) {
    clearInterval(this.#pinger);
    this.#asked = null;
    this.#pinger = setInterval(() => {
      if (this.#asked !== null && this.#heard < this.#asked) {
        this.fail(new ConnectionLost(`the server was silent for ${ms} ms and a ping.`));
        return;
      }
      this.#asked = now();
      this.send({ type: "ping", data: 0 });
    }, ms);
  }

  unwatch() {
    clearInterval(this.#pinger);
    this.#pinger = null;
  }

  /** Ends it with an error of ours. */
  fail(error) {
    this.#end(error);
    this.close();
  }

  close() {
    this.unwatch();
    this.#error ??= new ConnectionLost("the connection was closed here.");
    this.#socket.close(1000);
  }

  #take(data) {
    if (this.#error !== null) return;
    this.#heard = now();
    let message;
    try {
      if (typeof data === "string") throw new MsgpackError("it is text.");
      message = decode(data);
      if (typeof message?.type !== "string") throw new MsgpackError("it has no type.");
    } catch (error) {
      if (!(error instanceof MsgpackError)) throw error;
      this.fail(new BadServerMessage(`a message of the server cannot be read: ${error.message}`));
      return;
    }
    if (message.type === "error" && message.scope === "connection") {
      this.fail(serverError(message));
    } else {
      this.onmessage?.(message);
    }
  }

  #end(error) {
    if (this.#error !== null) return;
    this.#error = error;
    this.unwatch();
    const { onclose } = this;
    this.onmessage = this.onclose = null;
    onclose?.(error);
  }
}

/** Why a handshake failed, which a browser does not tell: an HTTP route with the same rules does. */
async function refusal({ server, key, fetch, timeoutMs }) {
  if (!fetch) return null;
  try {
    const answer = await fetch(routeUrl(server, "v1/models", "http"), {
      headers: key ? { Authorization: `Bearer ${key}` } : {},
      signal: AbortSignal.timeout(timeoutMs),
    });
    if (answer.ok) return null;
    const body = await answer.json();
    return serverError({ ...(body.error ?? body), scope: "connection" });
  } catch {
    return null; // no server, a foreign origin, or something that is no rt-drama3
  }
}
