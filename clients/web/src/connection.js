// Connection: one WebSocket that sends and receives maps and always reports its end.

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

/** @returns {number} milliseconds of a monotonic clock. */
export const now = () => performance.now();

export class Connection {
  /** Receives messages; null while it is idle. */
  onmessage = null;
  /** Called once with the error that ended it. */
  onclose = null;
  #socket;
  #error = null;
  #pinger = null;
  #pinged = null; // when an unanswered ping was sent
  #received = now(); // when the last message arrived
  // Browsers keep a page that was left in memory, and its sockets open.
  #leave = () => this.fail(new ConnectionLost("the page was left."));

  /**
   * @param {object} where
   * @param {string} where.server
   * @param {string} where.route such as "v1/stream?a=b".
   * @param {string | null} where.key
   * @param {number} where.timeoutMs
   * @param {typeof WebSocket} where.WebSocket
   * @param {typeof fetch} [where.fetch] used to find out why a handshake was refused.
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
    } catch (error) { // for example, http from a page on https
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
    if (opened === null) throw new ConnectFailed(`${url} did not respond in ${where.timeoutMs} ms.`);
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
    globalThis.addEventListener?.("pagehide", this.#leave);
  }

  get alive() {
    return this.#error === null && this.#socket.readyState === OPEN;
  }

  send(message) {
    if (this.alive) this.#socket.send(encode(message));
  }

  /**
   * Sends a ping every `ms`; a peer that sends nothing for as long is considered dead. A browser does
   * not ping by itself, and a half-open connection would hang for minutes.
   */
  watch(ms) {
    clearInterval(this.#pinger);
    this.#pinged = null;
    this.#pinger = setInterval(() => {
      if (this.#pinged !== null && this.#received < this.#pinged) {
        this.fail(new ConnectionLost(`the server sent nothing for ${ms} ms, not even a pong.`));
        return;
      }
      this.#pinged = now();
      this.send({ type: "ping", data: 0 });
    }, ms);
  }

  unwatch() {
    clearInterval(this.#pinger);
    this.#pinger = null;
  }

  /** Ends the connection with an error. */
  fail(error) {
    this.#end(error);
    this.close();
  }

  close() {
    this.unwatch();
    globalThis.removeEventListener?.("pagehide", this.#leave);
    this.#error ??= new ConnectionLost("the connection was closed by this page.");
    this.#socket.close(1000);
  }

  #take(data) {
    if (this.#error !== null) return;
    this.#received = now();
    let message;
    try {
      if (typeof data === "string") throw new MsgpackError("it is a text message.");
      message = decode(data);
      if (typeof message?.type !== "string") throw new MsgpackError("it has no type.");
    } catch (error) {
      if (!(error instanceof MsgpackError)) throw error;
      this.fail(new BadServerMessage(`invalid message from the server: ${error.message}`));
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
    globalThis.removeEventListener?.("pagehide", this.#leave);
    const { onclose } = this;
    this.onmessage = this.onclose = null;
    onclose?.(error);
  }
}

/** Finds out why a handshake failed, which a browser hides, through an HTTP route. */
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
    return null; // no server, a foreign origin, or another kind of server
  }
}
