import assert from "node:assert/strict";
import test from "node:test";

import {
  AccessDenied, BadServerMessage, Client, ClientClosed, ConnectFailed, ConnectionLost, Overloaded,
  ServerSilent, SpeechCancelled, TooSlow, Unavailable, UsageError,
} from "../src/index.js";
import { fakeServer, speaking } from "./fake.js";

function clientOf(fake, more = {}) {
  return new Client({
    server: "http://speech.example:8035/",
    WebSocket: fake.WebSocket,
    fetch: () => Promise.reject(new Error("offline")),
    backoffMs: 1,
    pingMs: 10_000,
    ...more,
  });
}

async function read(speech) {
  const events = [];
  for await (const event of speech) events.push(event);
  return events;
}

const kinds = (events) => events.map(({ type }) => type);

test("a text, its events, and a reused connection", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const speech = client.speak("Hello.", { sampleRate: 16000, previousTakes: [{ vqCodes: [[1]] }] });
  const events = await read(speech);
  assert.deepEqual(kinds(events), ["ready", "segment", "audio", "done"]);
  assert.deepEqual(events[1], {
    type: "segment", id: speech.id, index: 0, text: "Hello.", firstSample: 0,
  });
  assert.equal(events[2].audio.length, 12);
  assert.deepEqual([speech.samples, speech.sampleRate], [6, 16000]);
  assert.ok(speech.timings.firstAudio <= speech.timings.total);
  await read(client.speak("Again."));
  assert.equal(fake.lines.length, 1);
  assert.equal(fake.lines[0].socket.url, "ws://speech.example:8035/v1/stream");
  const [start] = fake.lines[0].got;
  assert.deepEqual({ ...start, previous_takes: null }, {
    type: "start", version: 1, text: "Hello.", final: true, sample_rate: 16000, previous_takes: null,
  });
  assert.deepEqual({ ...start.previous_takes[0] }, { vq_codes: [[1]] });
  client.close();
});

test("clips are bytes in either form, and options that cannot be sent throw immediately", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const bytes = new Uint8Array([82, 73, 70, 70]);
  const references = [{ text: "One.", audio: bytes }, { text: "Two.", audio: bytes.buffer }];
  await read(client.speak("Hello.", { references }));
  const sent = fake.lines[0].got[0].references;
  assert.deepEqual(sent.map(({ audio }) => audio), [bytes, bytes]);
  for (const audio of [new Blob([bytes]), new Map(), () => {}]) {
    const wrong = { references: [{ text: "Three.", audio }] };
    assert.throws(() => client.speak("Hello.", wrong), UsageError);
  }
  assert.equal(fake.lines[0].got.length, 1);
  client.close();
});

test("text is sent in the order in which it was pushed", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("One. ");
  speech.flush();
  speech.push("");
  speech.push("Two.");
  speech.finish();
  speech.finish();
  assert.throws(() => speech.push("late"), UsageError);
  await read(speech);
  assert.deepEqual(kinds(fake.lines[0].got), ["start", "text", "flush", "text", "finish"]);
  client.close();
});

test("a long text is split into messages within the server's limit", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const text = `x${"\u{1f600}".repeat(40_000)}`; // two halves each, so that one lies on every cut
  const speech = client.stream();
  speech.push(text);
  speech.finish();
  await read(speech);
  const pieces = fake.lines[0].got.filter(({ type }) => type === "text").map((one) => one.text);
  assert.ok(pieces.every((piece) => piece.length <= 16_384));
  assert.equal(pieces.join(""), text);
  client.close();
});

test("an iterable of text", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  async function* tokens() {
    yield "One ";
    yield "two.";
  }
  assert.equal((await read(client.speak(tokens()))).filter(({ type }) => type === "audio").length, 2);
  async function* broken() {
    yield "One ";
    throw new RangeError("the model failed");
  }
  await assert.rejects(read(client.speak(broken())), /the model failed/);
  client.close();
});

test("a key is sent as a subprotocol and never in the address", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake, { key: "a/b+c~?>" });
  await read(client.speak("Hello."));
  const { protocols, url } = fake.lines[0].socket;
  assert.equal(protocols[0], "rt-drama3");
  const offered = protocols[1].replace("rt-drama3.key.", "");
  assert.match(protocols[1], /^[A-Za-z0-9._-]+$/);
  assert.equal(Buffer.from(offered, "base64url").toString(), "a/b+c~?>");
  assert.ok(!url.includes("key"));
  client.close();
});

test("after a cancel there are no events, and the connection is kept", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("A long text.");
  let report;
  let after = 0;
  for await (const event of speech) {
    if (report) after += 1;
    if (event.type === "audio") report = speech.cancel();
  }
  assert.equal(after, 0);
  const { generated, acknowledged } = await report;
  assert.deepEqual([generated.frames, acknowledged], [3, true]);
  assert.throws(() => speech.push("more"), SpeechCancelled);
  assert.equal(speech.cancel(), report); // once is enough
  await read(client.speak("Next."));
  assert.equal(fake.lines.length, 1);
  client.close();
});

test("leaving the loop cancels", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("A text.");
  for await (const event of speech) if (event.type === "audio") break;
  assert.equal(fake.lines[0].got.at(-1).type, "cancel");
  client.close();
});

test("a cancel before the connection, and one after the end", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const early = client.speak("Never said.");
  assert.equal((await early.cancel()).acknowledged, false);
  assert.deepEqual(await read(early), []);
  const late = client.speak("Said.");
  await read(late);
  assert.equal((await late.cancel()).finished, true);
  assert.ok(!fake.lines.flatMap(({ got }) => got).some(({ type }) => type === "cancel"));
  client.close();
});

test("a cancel that crosses an error waits for its response", async () => {
  let owed = null;
  const answer = (line) => {
    if (owed) line.say(owed);
    owed = null;
  };
  const fake = fakeServer((line, message) => {
    if (message.type !== "cancel") {
      if (message.type === "start") answer(line); // the server keeps the order
      speaking(line, message);
      return;
    }
    line.say({
      type: "error", id: line.id, code: "stopped", message: "no.", retriable: false,
      scope: "utterance",
    });
    owed = {
      type: "cancelled", id: line.id, generated: { frames: 0, seconds: 0 },
      sent: { messages: 0, bytes: 0, samples: 0, seconds: 0 },
    };
    setTimeout(() => answer(line), 1);
  });
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("A text.");
  let report;
  for await (const event of speech) if (event.type === "audio") report = speech.cancel();
  assert.equal((await report).acknowledged, true);
  assert.equal(kinds(await read(client.speak("Next."))).at(-1), "done");
  assert.equal(fake.lines.length, 1);
  client.close();
});

test("before the first audio, a lost connection leads to a retry with all text", async () => {
  let drops = 2;
  const fake = fakeServer((line, message) => {
    if (message.type === "text" && drops-- > 0) line.drop();
    else speaking(line, message);
  });
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("One. ");
  speech.push("Two.");
  speech.finish();
  const events = await read(speech);
  assert.equal(fake.lines.length, 3);
  assert.deepEqual(kinds(fake.lines[2].got), ["start", "text", "text", "finish"]);
  assert.equal(events.filter(({ type }) => type === "audio").length, 2);
  client.close();
});

test("after the first audio it is an error with what was received", async () => {
  const fake = fakeServer((line, message) => {
    speaking(line, message);
    if (message.type === "text") setTimeout(() => line.drop(), 1);
  });
  const client = clientOf(fake);
  const speech = client.stream({ sampleRate: 8000 });
  speech.push("Cut off");
  await assert.rejects(read(speech), (error) => {
    assert.ok(error instanceof ConnectionLost);
    assert.deepEqual(error.received, { samples: 7, seconds: 7 / 8000 });
    return true;
  });
  assert.equal(fake.lines.length, 1);
  assert.throws(() => speech.push("more"), ConnectionLost);
  client.close();
});

test("retriable errors are retried, others are thrown", async () => {
  let times = 1;
  const refusing = (code, retriable) => fakeServer((line, message) => {
    if (message.type === "start" && (!retriable || times-- > 0)) {
      line.say({ type: "error", id: "x", code, message: "no.", retriable, scope: "utterance" });
    } else speaking(line, message);
  });
  const busy = clientOf(refusing("overloaded", true));
  assert.equal(kinds(await read(busy.speak("Hello."))).at(-1), "done");
  busy.close();
  times = 9;
  await assert.rejects(read(clientOf(refusing("overloaded", true)).speak("Hello.")), Overloaded);
  const fake = refusing("bad_field", false);
  await assert.rejects(read(clientOf(fake).speak("Hello.")), { code: "bad_field", requestId: "x" });
  assert.equal(fake.lines.length, 1);
});

test("a stop by the operator is an error", async () => {
  const fake = fakeServer((line, message) => {
    speaking(line, message);
    if (message.type !== "text") return;
    line.say({
      type: "error", id: line.id, code: "stopped", message: "the operator stopped all speech.",
      retriable: false, scope: "utterance",
    });
  });
  const speech = clientOf(fake).stream();
  speech.push("Hello");
  await assert.rejects(read(speech), Unavailable);
});

test("no server", async () => {
  const fake = fakeServer(speaking, { refuse: 9 });
  await assert.rejects(read(clientOf(fake).speak("Hello.")), ConnectFailed);
  assert.equal(fake.lines.length, 3);
});

test("the reason of a refused handshake is requested over HTTP", async () => {
  const fake = fakeServer(speaking, { refuse: 9 });
  const asked = [];
  const client = clientOf(fake, {
    key: "wrong",
    fetch: async (url, { headers }) => {
      asked.push([url, headers.Authorization]);
      const error = { code: "unauthorized", message: "the API key is not known.", remedy: "" };
      return { ok: false, json: async () => ({ status: 401, ...error }) };
    },
  });
  await assert.rejects(read(client.speak("Hello.")), AccessDenied);
  assert.deepEqual(asked, [["http://speech.example:8035/v1/models", "Bearer wrong"]]);
  assert.equal(fake.lines.length, 1); // a wrong key stays wrong
});

test("a response of another server is an error of this package", async () => {
  const page = new Response("<html>Bad gateway</html>", { status: 502 });
  const client = clientOf(fakeServer(speaking), { fetch: async () => page });
  await assert.rejects(client.voices(), (error) => {
    assert.ok(error instanceof BadServerMessage);
    assert.match(error.message, /HTTP status 502/);
    return true;
  });
});

test("a server that sends nothing, or invalid messages", async () => {
  const silent = clientOf(fakeServer(() => {}), { timeoutMs: 5 });
  await assert.rejects(read(silent.speak("Hello.")), ServerSilent);
  for (const data of ["text", new Uint8Array([0xc1]).buffer, new Uint8Array([0x80]).buffer]) {
    const fake = fakeServer((line, message) => message.type === "start" && line.raw(data));
    await assert.rejects(read(clientOf(fake).speak("Hello.")), BadServerMessage);
    assert.equal(fake.lines[0].socket.readyState, 3);
  }
});

test("a half-open connection is detected by pings, one that responds is kept", async () => {
  const dead = fakeServer((line, message) => message.type !== "ping" && speaking(line, message));
  const speech = clientOf(dead, { pingMs: 5 }).stream();
  speech.push("Hello");
  await assert.rejects(read(speech), /nothing for 5 ms, not even a pong/);
  const alive = fakeServer((line, message) => {
    if (message.type === "ping") line.say({ type: "pong", data: 0, server_ms: 1 });
    else speaking(line, message);
    const pings = line.got.filter(({ type }) => type === "ping").length;
    if (pings === 3 && message.type === "ping") waiting.finish();
  });
  const client = clientOf(alive, { pingMs: 5 });
  const waiting = client.stream();
  waiting.push("Hello");
  assert.equal(kinds(await read(waiting)).at(-1), "done");
  client.close();
});

test("a reader that does not read is cut off", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake, { bufferBytes: 100 });
  const speech = client.speak("x".repeat(60));
  await new Promise((resolve) => setTimeout(resolve, 5));
  await assert.rejects(read(speech), TooSlow);
  assert.equal(fake.lines[0].got.at(-1).type, "cancel");
});

test("closing the client ends running utterances", async () => {
  const fake = fakeServer(speaking);
  const client = clientOf(fake);
  const speech = client.stream();
  speech.push("Hello");
  const reading = read(speech);
  await new Promise((resolve) => setTimeout(resolve, 5));
  client.close();
  await assert.rejects(reading, ClientClosed);
  await assert.rejects(read(client.speak("Hello.")), ClientClosed);
});

test("addresses", () => {
  for (const server of ["", "nonsense", "ftp://a"]) {
    if (server) assert.throws(() => new Client({ server }), UsageError);
  }
  assert.equal(new Client({}).server, "http://127.0.0.1:8035/");
  assert.throws(() => new Client({ server: "http://a:99999" }), UsageError);
});

test("notices of the server are kept", async () => {
  const notices = ["text in this script is left out"];
  const fake = fakeServer((line, message) => {
    if (message.type !== "start") return;
    line.say({ type: "ready", id: "u", sample_rate: 16000, notices });
    line.say({ type: "notice", id: "u", text: "[1] is not spoken." });
    line.say({ type: "done", id: "u", frames: 0 });
  });
  const client = clientOf(fake);
  const speech = client.speak("Hello.");
  assert.deepEqual(speech.notices, []);
  await read(speech);
  assert.deepEqual(speech.notices, [...notices, "[1] is not spoken."]);
  client.close();
});

test("other values than text throw", async () => {
  const client = clientOf(fakeServer(speaking));
  for (const text of [null, undefined, 5, ["a", 5]]) {
    await assert.rejects(read(client.speak(text)), (error) => {
      assert.ok(error instanceof UsageError, `${error}`);
      return /^text is /.test(error.message);
    });
  }
  client.close();
});

test("errors keep their names when a bundler renames classes", () => {
  assert.equal(new UsageError("x").name, "UsageError");
  assert.equal(Object.hasOwn(new Overloaded({}), "name"), false);
  assert.equal(new ConnectFailed("x").name, "ConnectFailed");
});

test("a missing WebSocket, and one that cannot be opened, throw", async () => {
  const fake = fakeServer(speaking);
  const without = clientOf(fake, { WebSocket: false });
  await assert.rejects(read(without.speak("Hello.")), UsageError);
  const insecure = clientOf(fake, {
    WebSocket: class {
      constructor() {
        throw new Error("insecure");
      }
    },
  });
  await assert.rejects(read(insecure.speak("Hello.")), /cannot be opened from here: insecure/);
});
