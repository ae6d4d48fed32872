// Speaks through one of the published clients and writes what it heard: PCM at 16 kHz.
// node speak.mjs CLIENT URL FOLDER, with the texts as a JSON list on the standard input; utterance n
// becomes FOLDER/n.pcm.
import { readFileSync, writeFileSync } from "node:fs";

const RATE = 16000;
const [, , client, url, folder] = process.argv;
const texts = JSON.parse(readFileSync(0, "utf8"));

async function* words(text) {
  yield* text.split(/(?<= )/);
}

const clients = {
  async "fish-audio-http"(text) {
    const { FishAudioClient } = await import("fish-audio");
    const fish = new FishAudioClient({ apiKey: "any", baseUrl: url });
    const stream = await fish.textToSpeech.convert({ text, format: "pcm", sample_rate: RATE });
    const parts = [];
    for await (const part of stream) parts.push(part);
    return Buffer.concat(parts);
  },

  async "fish-audio-websocket"(text) {
    const { FishAudioClient, RealtimeEvents } = await import("fish-audio");
    const fish = new FishAudioClient({ apiKey: "any", baseUrl: url });
    const request = { text: "", format: "pcm", sample_rate: RATE };
    const connection = await fish.textToSpeech.convertRealtime(request, words(text));
    const parts = [];
    await new Promise((resolve, reject) => {
      connection.on(RealtimeEvents.AUDIO_CHUNK, (part) => parts.push(Buffer.from(part)));
      connection.on(RealtimeEvents.ERROR, reject);
      connection.on(RealtimeEvents.CLOSE, resolve);
    });
    connection.close?.();
    return Buffer.concat(parts);
  },

  async "fish-audio-sdk-http"(text) {
    const { Session, TTSRequest } = (await import("fish-audio-sdk")).default;
    const session = new Session("any", url);
    const request = new TTSRequest(text, { format: "pcm", sampleRate: RATE });
    const parts = [];
    for await (const part of session.tts(request, { model: "speech-1.5" })) parts.push(part);
    session.close();
    return Buffer.concat(parts);
  },
};

// One plugin for all utterances: the second one goes over the pooled socket.
async function livekit() {
  const { initializeLogger } = await import("@livekit/agents");
  const { TTS } = await import("@livekit/agents-plugin-fishaudio");
  initializeLogger({ pretty: false, level: "error" });
  const tts = new TTS({ apiKey: "any", baseURL: url, sampleRate: RATE });
  for (const [n, text] of texts.entries()) {
    const stream = tts.stream();
    for await (const word of words(text)) stream.pushText(word);
    stream.endInput();
    const parts = [];
    for await (const event of stream) {
      if (typeof event === "symbol") continue;
      const { data } = event.frame;
      parts.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    }
    stream.close();
    writeFileSync(`${folder}/${n}.pcm`, Buffer.concat(parts));
  }
  await tts.close();
}

if (client === "livekit") {
  await livekit();
} else {
  for (const [n, text] of texts.entries()) {
    writeFileSync(`${folder}/${n}.pcm`, await clients[client](text));
  }
}
process.exit(0);
