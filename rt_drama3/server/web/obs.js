// The page /obs: plays what the server speaks, and shows the segment that is heard.
//
// Settings are in the query, the API key in the fragment, which no server and no log gets to see.

import { Listener, Player, SAMPLE_RATES, plain } from "./client/index.js";

const HOLD_MS = 1_500; // that a caption stays when all is quiet
const NOTICE_MS = 5_000; // without a connection before it is said; a restart needs less

/** Settings of the page; what does not fit is as if it were not there. */
export function settingsOf(search, hash, cssSupports, inObs) {
  const query = new URLSearchParams(search);
  const number = (name, low, high, standard) => {
    const value = query.get(name);
    const found = value === null || value.trim() === "" ? NaN : Number(value);
    return Number.isFinite(found) ? Math.min(high, Math.max(low, found)) : standard;
  };
  const choice = (name, ...all) => (all.includes(query.get(name)) ? query.get(name) : all[0]);
  const colour = query.get("colour") ?? query.get("color");
  return {
    captions: query.get("captions") !== "0",
    size: number("size", 8, 400, 48),
    position: choice("position", "bottom", "top", "middle"),
    colour: colour && cssSupports("color", colour) ? colour : "#fff",
    plain: query.get("background") === "0",
    volume: number("volume", 0, 4, 1),
    delay: number("delay", 0, 60_000, 0),
    late: number("late", 250, 3_600_000, 2_000),
    rate: SAMPLE_RATES.includes(Number(query.get("rate"))) ? Number(query.get("rate")) : 48_000,
    mode: ["mix", "queue"].includes(query.get("mode")) ? query.get("mode") : undefined,
    notices: choice("notices", inObs ? "0" : "1", "0", "1") === "1", // not before an audience
    key: new URLSearchParams(hash.replace(/^#/, "")).get("key"),
  };
}

/** Shows captions in `element`. */
function captions(listener, element) {
  let clearing = null;
  listener.addEventListener("segment", ({ text }) => {
    clearTimeout(clearing);
    element.textContent = plain(text);
    element.hidden = false;
  });
  listener.addEventListener("quiet", () => {
    clearTimeout(clearing);
    clearing = setTimeout(() => (element.hidden = true), HOLD_MS);
  });
}

/** Shows a notice while the server cannot be reached. */
function notices(listener, element) {
  let timer = null;
  listener.addEventListener("state", () => {
    const { state, error } = listener;
    if (state === "listening") {
      clearTimeout(timer);
      timer = null;
      element.hidden = true;
    } else if (state === "refused") {
      clearTimeout(timer);
      timer = null;
      const remedy = error.code === "unauthorized" ? " Put #key=... behind the address." : "";
      element.textContent = `rt-drama3: ${error.message}${remedy}`;
      element.hidden = false;
    } else {
      timer ??= setTimeout(() => {
        element.textContent = "rt-drama3: waiting for the server";
        element.hidden = false;
      }, NOTICE_MS);
    }
  });
}

/** Browsers other than OBS may require a click first. */
function unblock(player, button) {
  const show = () => (button.hidden = player.state === "running");
  const resume = () => player.resume().then(show, show);
  player.addEventListener("state", show);
  button.addEventListener("click", resume);
  resume();
}

async function main() {
  const supports = (...rule) => CSS.supports(...rule);
  const inObs = "obsstudio" in globalThis;
  const settings = settingsOf(location.search, location.hash, supports, inObs);
  const caption = document.getElementById("caption");
  caption.style.setProperty("--size", `${settings.size}px`);
  caption.style.setProperty("--colour", settings.colour);
  caption.classList.add(settings.position);
  caption.classList.toggle("plain", settings.plain);
  const player = await Player.open({
    sampleRate: settings.rate,
    volume: settings.volume,
    delayMs: settings.delay,
  });
  const listener = new Listener(player, {
    server: new URL(".", location.href).href,
    key: settings.key,
    mode: settings.mode,
    sampleRate: settings.rate,
    lateMs: settings.late,
  });
  if (settings.captions) captions(listener, caption);
  if (settings.notices) notices(listener, document.getElementById("notice"));
  unblock(player, document.getElementById("unblock"));
  listener.start();
  globalThis.rtDrama3 = { player, listener }; // for the curious, and for scripts around the page
}

if (globalThis.document) {
  main().catch((error) => {
    const notice = document.getElementById("notice");
    notice.textContent = `rt-drama3: ${error.message}`;
    notice.hidden = false;
  });
}
