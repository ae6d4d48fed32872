// rt-drama3-web: speech from an rt-drama3 server in a web page, without a build step.

export * from "./errors.js";
export { Captions, plain } from "./captions.js";
export { Client } from "./client.js";
export { JitterMeter } from "./jitter.js";
export { withLength } from "./lengths.js";
export { Listener } from "./listener.js";
export { MsgpackError, decode, encode } from "./msgpack.js";
export { Playback, SAMPLE_RATES, say } from "./playback.js";
export { Player } from "./player.js";
export { Resampler } from "./resample.js";
export { Speech } from "./speech.js";
export { Track } from "./track.js";
