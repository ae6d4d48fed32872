// A voice agent without the cloud: the words of its language model are written down here, and a
// button says what a microphone would notice.

import { Client, Player, say } from "../src/index.js";

const ANSWERS = [
  "Good question. I checked your order, and it left the warehouse this morning. It will be with "
    + "you on Monday, before noon. Shall I send you the number of the parcel?",
  "Of course. Let me begin again, and a little shorter this time. Monday, before noon.",
];

const $ = (id) => document.getElementById(id);
const server = new URLSearchParams(location.search).get("server") ?? "http://127.0.0.1:8035";
const client = new Client({ server });
let opening = null;
let playback = null;
let turn = 0;

/** The words of a language model, a few at a time. */
async function* tokens(text) {
  for (const word of text.split(/(?<= )/)) {
    yield word;
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

function line(who, text) {
  const paragraph = document.createElement("p");
  paragraph.append(`${who}: `, text);
  $("talk").append(paragraph);
  return paragraph;
}

async function answer() {
  opening ??= Player.open().catch((error) => { // within the click: nothing plays before
    opening = null; // the next one tries again
    throw error;
  });
  const player = await opening;
  await player.resume();
  const text = ANSWERS[turn++ % ANSWERS.length];
  const mine = say(player, client, tokens(text));
  playback = mine;
  $("interrupt").disabled = false;
  const spoken = line("Agent", "");
  mine.addEventListener("segment", ({ text: words }) => spoken.append(`${words} `));
  mine.quiet.then(() => { // after an error, what was received still sounds
    if (playback === mine) $("interrupt").disabled = true;
  });
  const heard = await mine.finished;
  if (heard.stopped) {
    // What a language model should know: how much of its answer was heard.
    const rest = document.createElement("span");
    rest.className = "unheard";
    rest.textContent = `(interrupted after ${heard.seconds.toFixed(1)} s)`;
    spoken.append(rest);
  }
}

function trying(action) {
  return () => action().catch((error) => line("Error", error.message));
}

$("ask").addEventListener("click", trying(async () => {
  await playback?.stop();
  line("You", "When will my order come?");
  await answer();
}));
$("interrupt").addEventListener("click", trying(async () => {
  await playback.stop();
  line("You", "Sorry, once more?");
  await answer();
}));
