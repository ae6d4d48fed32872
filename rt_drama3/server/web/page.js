// The page /: type a sentence, hear it, stop it.

import { Client, Player, plain, say } from "./client/index.js";

const $ = (id) => document.getElementById(id);

let player = null; // created at the first click: before it, browsers block playback
let playback = null;

function client() {
  return new Client({ server: new URL(".", location.href).href, key: $("key").value });
}

function report(text) {
  $("said").textContent = text;
}

function figures(mine, result) {
  const ms = (value) => (value === null ? "-" : `${value.toFixed(0)} ms`);
  const parts = [`first audio after ${ms(mine.firstAudioMs)}, heard after ${ms(mine.firstHeardMs)}`];
  if (result) {
    parts.push(`${result.seconds.toFixed(2)} s heard${result.stopped ? ", then stopped" : ""}`);
    if (result.underruns) parts.push(`${result.underruns} gaps`);
  }
  parts.push(...mine.speech.notices);
  report(parts.join("; "));
}

async function speak() {
  const before = playback;
  playback = null;
  await before?.stop();
  player ??= await Player.open();
  await player.resume();
  player.volume = Number($("volume").value);
  const asked = client();
  const mine = say(player, asked, $("text").value, {
    voice: $("voice").value || undefined,
    sampleRate: $("rate").value ? Number($("rate").value) : undefined,
  });
  playback = mine;
  $("stop").disabled = false;
  $("caption").textContent = "";
  report("...");
  mine.addEventListener("segment", ({ text }) => ($("caption").textContent = plain(text)));
  mine.addEventListener("begin", () => figures(mine, null));
  try {
    figures(mine, await mine.finished);
  } finally {
    asked.close();
    if (playback === mine) {
      playback = null;
      $("stop").disabled = true;
    }
  }
}

async function save() {
  const format = $("format").value;
  const parts = [];
  const asked = client();
  report("...");
  const speech = asked.speak($("text").value, { format, voice: $("voice").value || undefined });
  try {
    for await (const event of speech) if (event.type === "audio") parts.push(event.audio);
  } finally {
    asked.close();
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts));
  link.download = `speech.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  report(`${(speech.samples / speech.sampleRate).toFixed(2)} s saved as ${link.download}`);
}

async function voices() {
  const asked = client();
  const stored = await asked.voices().catch(() => []); // a key may be required, and is entered later
  const chosen = $("voice").value;
  const list = stored.map(({ id }) => new Option(id, id, false, id === chosen));
  $("voice").replaceChildren($("voice").options[0], ...list);
}

const trying = (action) => () => action().catch((error) => report(error.message));

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  trying(speak)();
});
$("stop").addEventListener("click", trying(async () => playback?.stop()));
$("save").addEventListener("click", trying(save));
$("volume").addEventListener("input", () => {
  if (player) player.volume = Number($("volume").value);
});
$("key").addEventListener("change", trying(voices));
trying(voices)();
