// Speech: one utterance.

import { now } from "./connection.js";
import {
  BadServerMessage,
  ClientError,
  ServerSilent,
  SpeechCancelled,
  TooSlow,
  UsageError,
  serverError,
} from "./errors.js";
import { fromWire, toWire } from "./fields.js";
import { MsgpackError, encode } from "./msgpack.js";

const LAST = Symbol("last");
const MESSAGE_CHARACTERS = 16_384; // per text message

/**
 * Created by `Client.stream` and `Client.speak`. Iterate over it for its events: `ready`, `queued`,
 * `segment`, `audio` and `done`, as objects with a `type`; leaving the loop early cancels it.
 *
 * Before the first audio, a lost connection and errors that the server marks as retriable lead to
 * another attempt, which sends the text again (`ready` is then repeated). Later they are errors.
 */
export class Speech {
  /** Milliseconds since creation: `connect`, `ready`, `firstAudio`, `total`; null before. */
  timings = { connect: null, ready: null, firstAudio: null, total: null, reused: false };
  /** The server's id of the utterance, once ready. */
  id = null;
  sampleRate = null;
  /** Warnings of the server: unspeakable text, settings without effect. */
  notices = [];
  /** Samples of audio received. */
  samples = 0;
  #client;
  #start;
  #log = []; // messages sent so far, until the first audio
  #connection = null;
  #began = now();
  #events = [];
  #bytes = 0; // of audio in #events
  #reader = null;
  #state = "open"; // "cancelled", "failed", "done"
  #error = null;
  #textOver;
  #cancelled = null; // {promise, resolve} once asked for
  #attempt = 0;
  #timer = null;

  /** Use `Client.stream` or `Client.speak`. */
  constructor(client, options) {
    this.#client = client;
    this.#start = { version: 1, ...toWire(options), type: "start" };
    try {
      encode(this.#start); // so that errors are thrown to the caller
    } catch (error) {
      if (!(error instanceof MsgpackError)) throw error;
      throw new UsageError(`the options cannot be sent: ${error.message}`);
    }
    this.#textOver = options.final === true;
    this.#connect();
  }

  /** @param {string} text may be split anywhere, even within a word. */
  push(text) {
    if (typeof text !== "string") throw new UsageError(`text is ${kind(text)}, not a string.`);
    for (const part of cut(text)) this.#send({ type: "text", text: part });
  }

  /** Speaks the text so far, although its sentence is incomplete. */
  flush() {
    this.#send({ type: "flush" });
  }

  /** Ends the text. */
  finish() {
    if (this.#textOver && this.#state !== "cancelled") return;
    this.#send({ type: "finish" });
    this.#textOver = true;
    this.#await();
  }

  /**
   * Barge-in: after this call there are no more events.
   *
   * @returns {Promise<object>} what was `generated` and `sent`, if `acknowledged`.
   */
  cancel() {
    if (this.#cancelled) return this.#cancelled.promise;
    let resolve;
    const promise = new Promise((fulfil) => (resolve = fulfil));
    this.#cancelled = { promise, resolve };
    const none = { messages: 0, bytes: 0, samples: 0, seconds: 0 };
    const unheard = { generated: { frames: 0, seconds: 0 }, sent: none, acknowledged: false };
    if (this.#state !== "open") {
      resolve({ ...unheard, finished: this.#state === "done" });
      this.#drop();
      return promise;
    }
    this.#state = "cancelled";
    this.#drop();
    if (this.#connection) {
      this.#connection.send({ type: "cancel" });
      this.#arm(this.#client.settings.cancelTimeoutMs, () => {
        this.#leave();
        resolve({ ...unheard, finished: false });
      });
    } else {
      resolve({ ...unheard, finished: false });
    }
    return promise;
  }

  /** Pushes the parts of an iterable, then finishes; its errors cancel and are thrown to readers. */
  async pour(parts) {
    try {
      if (!parts?.[Symbol.asyncIterator] && !parts?.[Symbol.iterator]) {
        throw new UsageError(`text is ${kind(parts)}, neither a string nor an iterable of strings.`);
      }
      for await (const part of parts) {
        if (this.#state !== "open") return;
        this.push(part);
      }
      if (this.#state === "open") this.finish();
    } catch (error) {
      if (this.#state !== "open") return;
      this.cancel();
      this.#error = error;
    }
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#events.length) {
          const event = this.#events.shift();
          if (event === LAST) return;
          if (event.type === "audio") this.#bytes -= event.audio.length;
          yield event;
        }
        if (this.#error) throw this.#error;
        if (this.#state === "cancelled" || this.#state === "done") return;
        await new Promise((resolve) => (this.#reader = resolve));
      }
    } finally {
      if (this.#state === "open") this.cancel();
    }
  }

  #send(message) {
    if (this.#error && this.#state === "failed") throw this.#error;
    if (this.#state === "cancelled") throw new SpeechCancelled();
    if (this.#textOver) throw new UsageError(`${message.type} came after finish.`);
    if (this.timings.firstAudio === null) this.#log.push(message);
    this.#connection?.send(message);
  }

  async #connect() {
    const fresh = this.#attempt++ > 0;
    let connection;
    try {
      connection = await this.#client.acquire(fresh);
    } catch (error) {
      this.#trouble(error);
      return;
    }
    if (this.#state !== "open") {
      this.#client.release(connection);
      return;
    }
    this.timings.connect ??= now() - this.#began;
    this.timings.reused = connection.reused;
    this.#connection = connection;
    connection.onmessage = (message) => this.#take(message);
    connection.onclose = (error) => {
      this.#connection = null;
      this.#client.forget(connection);
      this.#trouble(error);
    };
    connection.watch(this.#client.settings.pingMs);
    connection.send(this.#start);
    for (const message of this.#log) connection.send(message);
    this.id = null;
    this.#await();
  }

  #take(message) {
    if (message.type === "pong") return;
    if (message.type === "ready" && this.id === null) {
      this.id = message.id;
      this.sampleRate = message.sample_rate;
      this.notices = message.notices ?? [];
      this.timings.ready = now() - this.#began;
    } else if (typeof message.id === "string" && message.id !== this.id && this.id !== null) {
      return; // of an earlier utterance on this connection
    }
    if (this.#state === "open") this.#disarm();
    if (message.type === "cancelled") {
      this.#leave(true);
      this.#cancelled?.resolve({ ...fromWire(message), acknowledged: true, finished: false });
      if (this.#state === "open") this.#fail(new SpeechCancelled("the server cancelled it."));
    } else if (message.type === "error") {
      if (this.#state === "cancelled") return; // the response to the cancel is still to come
      const error = serverError(message);
      if (error.scope === "message") this.#fail(error, true);
      else this.#refused(error);
    } else if (this.#state === "open") {
      this.#event(message);
    }
  }

  #event(message) {
    if (message.type === "audio") {
      if (!(message.audio instanceof Uint8Array)) {
        this.#connection.fail(new BadServerMessage("an audio message has no bytes."));
        return;
      }
      this.timings.firstAudio ??= now() - this.#began;
      this.#log = [];
      this.samples = message.first_sample + message.samples;
      this.#bytes += message.audio.length;
      if (this.#bytes > this.#client.settings.bufferBytes) {
        const text = `${this.#bytes} bytes of audio were not read.`;
        this.#fail(new TooSlow(text, { code: "slow_reader", remedy: "Iterate faster." }), true);
        return;
      }
    }
    if (message.type === "notice") this.notices.push(message.text);
    this.#events.push(fromWire(message));
    if (message.type === "done") {
      this.timings.total = now() - this.#began;
      this.#state = "done";
      this.#events.push(LAST);
      this.#leave(true);
    } else {
      this.#await(message.type === "queued");
    }
    this.#wake();
  }

  #refused(error) {
    this.#leave(true);
    this.#trouble(error);
  }

  /** Handles a failed attempt: retries, or fails. */
  #trouble(error) {
    this.#disarm();
    const { attempts, backoffMs } = this.#client.settings;
    if (this.#state === "cancelled") {
      this.#cancelled.resolve({ generated: null, sent: null, acknowledged: false, finished: false });
      return;
    }
    if (this.#state !== "open") return;
    if (error.retriable && this.timings.firstAudio === null && this.#attempt < attempts) {
      const pause = Math.min(2_000, backoffMs * 2 ** (this.#attempt - 1));
      setTimeout(() => this.#state === "open" && this.#connect(), pause);
      return;
    }
    this.#fail(error);
  }

  #fail(error, cancel = false) {
    if (cancel) this.#connection?.send({ type: "cancel" });
    if (error instanceof ClientError && this.sampleRate) {
      error.received = { samples: this.samples, seconds: this.samples / this.sampleRate };
    }
    this.#state = "failed";
    this.#error = error;
    this.#leave(); // drops messages in transit
    this.#wake();
  }

  /** Releases the connection: back to the client, if it can be reused. */
  #leave(keep = false) {
    this.#disarm();
    const connection = this.#connection;
    this.#connection = null;
    if (!connection) return;
    connection.onmessage = connection.onclose = null;
    if (keep) this.#client.release(connection);
    else this.#client.forget(connection);
  }

  #drop() {
    this.#events = [];
    this.#bytes = 0;
    this.#wake();
  }

  #wake() {
    this.#reader?.();
    this.#reader = null;
  }

  /** Starts the timeout of the next message, unless the server waits for text. */
  #await(queued = false) {
    const owes = this.id === null || this.#textOver || queued;
    if (!owes || !this.#connection) return;
    const { timeoutMs, queueTimeoutMs } = this.#client.settings;
    const limit = queued ? queueTimeoutMs : timeoutMs;
    this.#arm(limit, () => {
      this.#connection?.fail(new ServerSilent(`the server sent nothing for ${limit} ms.`));
    });
  }

  #arm(ms, late) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(late, ms);
  }

  #disarm() {
    clearTimeout(this.#timer);
  }
}

function kind(value) {
  return value === null || value === undefined ? String(value) : `of type ${typeof value}`;
}

/** Splits text into parts that fit into a message, without splitting surrogate pairs. */
function* cut(text) {
  for (let from = 0, to; from < text.length; from = to) {
    to = Math.min(from + MESSAGE_CHARACTERS, text.length);
    const last = text.charCodeAt(to - 1);
    if (to < text.length && last >= 0xd800 && last < 0xdc00) to -= 1; // its other half follows
    yield text.slice(from, to);
  }
}
