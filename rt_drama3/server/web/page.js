// The page /: type a text, hear it, stop it, save it.

import { Client, Player, plain, say, withLength } from "./client/index.js";

const $ = (id) => document.getElementById(id);
const TEXT = "rt-drama3.text"; // in the tab's storage, so that the text survives a reload
const NO_WORDS = "There are no words to speak in this text.";

let opening = null; // the player, from the first click on: before it, browsers block playback
let playback = null; // the utterance that is asked for or sounds, until its last sample
let turn = 0; // counts clicks on Speak and Stop: what waits for an earlier one ends there

function client() {
  return new Client({ server: new URL(".", location.href).href, key: $("key").value });
}

function report(text) {
  $("said").textContent = text;
}

function fail(error) {
  if (error.code !== "unauthorized") {
    report(error.message);
  } else if ($("key").value) {
    report("The server does not accept this API key. Correct it, and try again.");
  } else {
    report("This server requires an API key. Enter it in the field “API key”, and try again.");
  }
}

/** Enables Stop; where it is disabled it keeps the focus, as an element that vanishes could not. */
function stoppable(can) {
  $("stop").setAttribute("aria-disabled", String(!can));
}

/** The text; null, after saying so, without one. */
function typed() {
  if ($("text").value.trim()) return $("text").value;
  report("Enter a text first.");
  return null;
}

function figures(mine, result) {
  const parts = [];
  if (mine.firstAudioMs !== null) {
    const heard = mine.firstHeardMs === null ? "" : `, heard after ${mine.firstHeardMs.toFixed(0)} ms`;
    parts.push(`first audio after ${mine.firstAudioMs.toFixed(0)} ms${heard}`);
  }
  if (result?.samples || result?.stopped) {
    parts.push(`${result.seconds.toFixed(2)} s heard${result.stopped ? ", then stopped" : ""}`);
  } else if (result) {
    parts.push(NO_WORDS);
  }
  if (result?.underruns) parts.push(`${result.underruns} gaps`);
  parts.push(...mine.speech.notices);
  report(parts.join("; "));
}

async function speak() {
  const text = typed();
  if (text === null) return;
  const mine = ++turn;
  stoppable(true);
  report("...");
  try {
    opening ??= Player.open();
    opening.catch(() => (opening = null)); // the next click tries again
    const player = await opening;
    await player.resume();
    await playback?.stop();
    if (mine !== turn) return;
    player.volume = Number($("volume").value);
    play(player, text);
  } finally {
    if (mine === turn) stoppable(playback !== null);
  }
}

function play(player, text) {
  const asked = client();
  const mine = say(player, asked, text, {
    voice: $("voice").value || undefined,
    sampleRate: $("rate").value ? Number($("rate").value) : undefined,
  });
  playback = mine;
  const unlessReplaced = (action) => (value) => playback === mine && action(value);
  $("caption").textContent = "";
  mine.addEventListener("segment", unlessReplaced((event) => {
    $("caption").textContent = plain(event.text);
  }));
  mine.addEventListener("begin", unlessReplaced(() => figures(mine, null)));
  mine.finished
    .then(unlessReplaced((result) => figures(mine, result)), unlessReplaced(fail))
    .finally(() => asked.close());
  // After an error, what was received still sounds, and can be stopped.
  mine.quiet.then(unlessReplaced(() => {
    playback = null;
    stoppable(false);
  }));
}

async function stop() {
  if ($("stop").getAttribute("aria-disabled") === "true") return;
  const mine = ++turn;
  if (playback === null) report("");
  await playback?.stop();
  if (mine === turn) stoppable(playback !== null);
}

async function save() {
  const text = typed();
  if (text === null) return;
  const format = $("format").value;
  const parts = [];
  let done = null;
  const asked = client();
  report("...");
  const speech = asked.speak(text, { format, voice: $("voice").value || undefined });
  try {
    for await (const event of speech) {
      if (event.type === "audio") parts.push(event.audio);
      else if (event.type === "done") done = event;
    }
  } finally {
    asked.close();
  }
  if (!done.frames) {
    report([NO_WORDS, ...speech.notices].join("; "));
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([withLength(format, parts, speech.samples)]));
  link.download = `speech.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  report(`${(speech.samples / speech.sampleRate).toFixed(2)} s saved as ${link.download}`);
}

async function voices() {
  const stored = await client().voices();
  const chosen = $("voice").value;
  const list = stored.map(({ id }) => new Option(id, id, false, id === chosen));
  $("voice").replaceChildren($("voice").options[0], ...list);
}

/** The tab's storage; a browser may refuse it. */
function remembered(action) {
  try {
    return action(sessionStorage);
  } catch {
    return null;
  }
}

const trying = (action) => () => action().catch(fail);

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  trying(speak)();
});
$("stop").addEventListener("click", trying(stop));
$("save").addEventListener("click", trying(save));
document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.repeat) return;
  if (event.key === "Escape") {
    trying(stop)();
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    trying(speak)();
  }
});
$("volume").addEventListener("input", () => {
  opening?.then((player) => (player.volume = Number($("volume").value)), () => {});
});
$("key").addEventListener("change", trying(async () => {
  await voices();
  report("");
}));
$("text").value = remembered((storage) => storage.getItem(TEXT)) ?? $("text").value;
$("text").addEventListener("input", () => {
  remembered((storage) => storage.setItem(TEXT, $("text").value));
});
trying(voices)();
