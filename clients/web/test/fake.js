// A fake WebSocket and its server in the same process.

import { decode, encode } from "../src/msgpack.js";

/** `serve(line, message)` gets what a client says; `line.say(message)` and `line.drop(code)` answer. */
export function fakeServer(serve, { refuse = 0 } = {}) {
  const lines = [];
  let refusals = refuse;
  class FakeWebSocket {
    readyState = 0;

    constructor(url, protocols) {
      this.url = url;
      this.protocols = protocols;
      const line = {
        socket: this,
        got: [],
        say: (message) => queueMicrotask(() => {
          if (this.readyState === 1) this.onmessage?.({ data: encode(message).buffer });
        }),
        raw: (data) => queueMicrotask(() => this.onmessage?.({ data })),
        drop: (code = 1006, reason = "") => this.#close(code, reason),
      };
      this.line = line;
      lines.push(line);
      queueMicrotask(() => {
        if (refusals > 0) {
          refusals -= 1;
          this.#close(1006, "");
        } else {
          this.readyState = 1;
          this.onopen?.();
        }
      });
    }

    send(data) {
      const message = decode(data);
      this.line.got.push(message);
      serve(this.line, message);
    }

    close(code = 1000) {
      this.#close(code, "");
    }

    #close(code, reason) {
      if (this.readyState === 3) return;
      this.readyState = 3;
      queueMicrotask(() => this.onclose?.({ code, reason }));
    }
  }
  return { WebSocket: FakeWebSocket, lines };
}

let count = 0;

/** Answers as the server does: `ready`, and audio for every text, until `finish`. */
export function speaking(line, message) {
  if (message.type === "start") {
    line.id = `u${++count}`;
    line.place = 0;
    line.say({ type: "ready", id: line.id, sample_rate: message.sample_rate ?? 44100 });
    if (message.text) utter(line, message.text);
    if (message.final) end(line);
  } else if (message.type === "text") {
    utter(line, message.text);
  } else if (message.type === "finish") {
    end(line);
  } else if (message.type === "cancel") {
    line.say({
      type: "cancelled",
      id: line.id,
      generated: { frames: 3, seconds: 0.1 },
      sent: { messages: 1, bytes: 8, samples: 4, seconds: 0 },
    });
  }
}

function utter(line, text) {
  line.say({ type: "segment", id: line.id, index: 0, text, first_sample: line.place });
  const audio = new Uint8Array(2 * text.length).fill(1);
  line.say({
    type: "audio", id: line.id, seq: 0, first_sample: line.place, samples: text.length, audio,
  });
  line.place += text.length;
}

function end(line) {
  line.say({ type: "done", id: line.id, frames: 1, complete: true, sent: { samples: line.place } });
}
