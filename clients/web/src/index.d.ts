// Types of rt-drama3-web.

/** An audio file, for example `await response.arrayBuffer()`. */
export type Bytes = Uint8Array | ArrayBuffer;

/** Fields of the protocol's `start` in camelCase, e.g. `sampleRate`. */
export interface SpeechOptions {
  voice?: string;
  references?: { text: string; audio?: Bytes | string; vqCodes?: Uint8Array | number[][] }[];
  history?: { text: string; vqCodes: Uint8Array | number[][] }[];
  previousTakes?: unknown[];
  guidance?: number;
  steering?: { name: string; strength: number }[];
  format?: "pcm" | "pcm_f32" | "wav" | "mp3" | "opus" | "flac" | "aac";
  sampleRate?: number;
  bitrate?: number;
  quality?: "low_latency" | "high";
  gainDb?: number;
  temperature?: number;
  headTemperature?: number;
  topP?: number;
  topK?: number;
  repetitionAware?: boolean;
  seed?: number | bigint;
  maxSeconds?: number;
  timings?: boolean;
  take?: boolean;
  [other: string]: unknown;
}

export interface ClientOptions {
  /** Its address; default: the page's own server. */
  server?: string;
  /** API key. */
  key?: string | null;
  connectTimeoutMs?: number;
  timeoutMs?: number;
  queueTimeoutMs?: number;
  cancelTimeoutMs?: number;
  pingMs?: number;
  attempts?: number;
  backoffMs?: number;
  bufferBytes?: number;
  WebSocket?: typeof WebSocket;
  fetch?: typeof fetch;
}

export interface ReadyEvent {
  type: "ready";
  id: string;
  model: string;
  voice: string | null;
  format: string;
  contentType: string;
  sampleRate: number;
  channels: number;
  bitrate: number | null;
  frameMs: number;
  limits: Record<string, number>;
  ignored: string[];
  notices: string[];
}

export interface QueuedEvent {
  type: "queued";
  id: string;
  /** Number of utterances in front. */
  position: number;
}

/** Something of streamed text is not spoken. */
export interface NoticeEvent {
  type: "notice";
  id: string;
  text: string;
}

export interface SegmentEvent {
  type: "segment";
  id: string;
  index: number;
  text: string;
  firstSample: number;
}

export interface AudioEvent {
  type: "audio";
  id: string;
  seq: number;
  firstSample: number;
  samples: number;
  audio: Uint8Array;
  stamps?: Record<string, number | number[]>;
}

export interface DoneEvent {
  type: "done";
  id: string;
  frames: number;
  segments: number;
  seed: number | bigint | null;
  complete: boolean;
  sent: Sent;
  timings: Record<string, number | null>;
  take?: Record<string, unknown>;
}

export type SpeechEvent =
  | ReadyEvent
  | QueuedEvent
  | SegmentEvent
  | NoticeEvent
  | AudioEvent
  | DoneEvent;

export interface Sent {
  messages: number;
  bytes: number;
  samples: number;
  seconds: number;
}

export interface Cancelled {
  generated: { frames: number; seconds: number } | null;
  sent: Sent | null;
  /** Whether the server confirmed it; the totals are then the server's. */
  acknowledged: boolean;
  /** Whether it was already complete. */
  finished: boolean;
}

export interface Segment {
  text: string;
  firstSample: number;
}

export interface Voice {
  id: string;
  [other: string]: unknown;
}

export type Text = string | Iterable<string> | AsyncIterable<string>;

/** Speech from an rt-drama3 server over its native protocol, /v1/stream. */
export class Client {
  constructor(options?: ClientOptions);
  readonly server: string;
  readonly key: string | null;
  connect(): Promise<void>;
  stream(options?: SpeechOptions): Speech;
  speak(text: Text, options?: SpeechOptions): Speech;
  voices(): Promise<Voice[]>;
  models(): Promise<{ id: string }[]>;
  close(): void;
}

/** One utterance; iterate over it for its events. Leaving the loop early cancels it. */
export class Speech implements AsyncIterable<SpeechEvent> {
  private constructor();
  readonly id: string | null;
  readonly sampleRate: number | null;
  readonly samples: number;
  /** Warnings of the server: unspeakable text, settings without effect. */
  readonly notices: string[];
  /** Milliseconds since creation. */
  readonly timings: {
    connect: number | null;
    ready: number | null;
    firstAudio: number | null;
    total: number | null;
    reused: boolean;
  };
  push(text: string): void;
  flush(): void;
  finish(): void;
  cancel(): Promise<Cancelled>;
  pour(parts: Iterable<string> | AsyncIterable<string>): Promise<void>;
  [Symbol.asyncIterator](): AsyncIterator<SpeechEvent>;
}

export interface JitterBounds {
  leastMs?: number;
  mostMs?: number;
  firstMs?: number;
  marginMs?: number;
  memory?: number;
}

export interface PlayerOptions {
  /** Rate of the context in Hz; the streams' rate avoids resampling. */
  sampleRate?: number;
  /** Context to use instead of a new one. */
  context?: AudioContext;
  destination?: AudioNode;
  latencyHint?: AudioContextLatencyCategory | number;
  /** 0 to 4; 1 leaves the samples unchanged. */
  volume?: number;
  /** Delay before the first sample of every track. */
  delayMs?: number;
  jitter?: JitterBounds;
  /** URL of `processor.js`, if a bundler moved it. */
  processorUrl?: string | URL;
}

/** Fires `state` and `error`. */
export class Player extends TypedEventTarget<{ state: Event; error: FailedEvent }> {
  private constructor();
  static open(options?: PlayerOptions): Promise<Player>;
  readonly sampleRate: number;
  readonly context: AudioContext;
  readonly state: "running" | "suspended" | "closed";
  readonly heardFrame: number;
  readonly stats: {
    sampleRate: number;
    tracks: number;
    underruns: number;
    bufferedMs: number;
    thresholdMs: number;
    latencyMs: number;
  };
  volume: number;
  delayMs: number;
  /** Rejects with `AutoplayBlocked` while the browser requires a click first. */
  resume(): Promise<void>;
  track(options?: { sampleRate?: number; after?: Track }): Track;
  stop(fadeMs?: number): void;
  close(): Promise<void>;
}

export interface TrackReport {
  samples: number;
  stopped: boolean;
  underruns: number;
}

/** A `segment` event of a track, a playback or a listener. */
export interface HeardSegment extends Event, Segment {}

/** An `error` event of a player or a track. */
export interface FailedEvent extends Event {
  error: ClientError;
  track?: Track;
}

/** An EventTarget with typed events. */
declare class TypedEventTarget<Events> extends EventTarget {
  addEventListener<Name extends keyof Events & string>(
    type: Name,
    listener: (event: Events[Name]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/** One stream of audio. Fires `begin`, `segment` (`HeardSegment`), `underrun`, `error`, `end`. */
export class Track extends TypedEventTarget<{
  begin: Event;
  segment: HeardSegment;
  underrun: Event;
  error: FailedEvent;
  end: Event;
}> {
  private constructor();
  readonly id: number;
  readonly sampleRate: number;
  readonly heard: number;
  readonly bufferedMs: number;
  readonly underruns: number;
  readonly segments: Segment[];
  readonly startTime: number | null;
  readonly ended: boolean;
  readonly finished: Promise<TrackReport>;
  write(pcm: Int16Array | Float32Array | Uint8Array, firstSample?: number): void;
  segment(text: string, firstSample: number): void;
  skip(ms: number): void;
  end(): void;
  stop(fadeMs?: number): void;
}

export interface Heard extends TrackReport {
  seconds: number;
  /** Segments whose playback has started; the last one may have been interrupted. */
  segments: Segment[];
}

/** Plays an utterance while it is generated. Fires `begin`, `segment` and `end`. */
export class Playback extends TypedEventTarget<{ begin: Event; segment: HeardSegment; end: Event }> {
  constructor(player: Player, speech: Speech);
  readonly speech: Speech;
  readonly firstAudioMs: number | null;
  readonly firstHeardMs: number | null;
  readonly heard: number;
  readonly segments: Segment[];
  readonly bufferedMs: number;
  readonly finished: Promise<Heard>;
  /** Fulfilled when nothing of it sounds any more, also after an error; `stop` works until then. */
  readonly quiet: Promise<void>;
  stop(fadeMs?: number): Promise<Heard>;
}

/** The rates at which the server provides PCM. */
export const SAMPLE_RATES: readonly number[];

/** Requests an utterance at the player's rate, and plays it. */
export function say(player: Player, client: Client, text: Text, options?: SpeechOptions): Playback;

export interface ListenerOptions {
  server?: string;
  key?: string | null;
  mode?: "mix" | "queue";
  sampleRate?: number;
  connectTimeoutMs?: number;
  pingMs?: number;
  backoffMs?: number;
  mostBackoffMs?: number;
  lateMs?: number;
  WebSocket?: typeof WebSocket;
  fetch?: typeof fetch;
}

/** Plays the speech of all clients of a server, over /v1/listen. Fires `state`, `segment`, `quiet`. */
export class Listener extends TypedEventTarget<{ state: Event; segment: HeardSegment; quiet: Event }> {
  constructor(player: Player, options?: ListenerOptions);
  readonly state: "stopped" | "connecting" | "listening" | "waiting" | "refused";
  readonly error: ClientError | null;
  start(): void;
  stop(fadeMs?: number): void;
}

/** Which segment of the text is being played. */
export class Captions {
  add(segment: Segment): void;
  advance(heard: number): Segment[];
  readonly heard: Segment[];
}

/** Returns a segment's text for display: without tags such as `<|speaker:1|>`. */
export function plain(text: string): string;

/** Joins the audio of a finished utterance into a file whose header has its true length. */
export function withLength(format: string, parts: Uint8Array[], samples: number): Uint8Array;

/** Chooses how much to buffer before playback starts. */
export class JitterMeter {
  constructor(bounds?: JitterBounds);
  readonly targetMs: number;
  arrived(nowMs: number, lengthMs: number): void;
  ended(): void;
}

/** A streaming windowed-sinc resampler. */
export class Resampler {
  constructor(from: number, to: number);
  push(samples: Float32Array): Float32Array;
  flush(): Float32Array;
}

export function encode(value: unknown): Uint8Array;
export function decode(data: Uint8Array | ArrayBuffer): unknown;
export class MsgpackError extends Error {}

interface ErrorDetails {
  code?: string;
  remedy?: string;
  retriable?: boolean;
  requestId?: string | null;
  scope?: string;
}

/** Base of all errors of this package. */
export class ClientError extends Error {
  constructor(message: string, more?: ErrorDetails);
  readonly code: string;
  readonly remedy: string;
  readonly retriable: boolean;
  readonly requestId: string | null;
  readonly scope: string | null;
  /** What was received of the utterance before. */
  readonly received: { samples: number; seconds: number };
}
export class UsageError extends ClientError {
  constructor(message: string, remedy?: string);
}
export class ConnectFailed extends ClientError {}
export class ConnectionLost extends ClientError {}
export class ServerSilent extends ClientError {}
export class BadServerMessage extends ClientError {}
export class SpeechCancelled extends ClientError {}
export class ClientClosed extends ClientError {}
export class AutoplayBlocked extends ClientError {
  constructor();
}
export class PlayerUnavailable extends ClientError {}
export class PlayerFull extends ClientError {}
export class ServerError extends ClientError {}
export class BadRequest extends ServerError {}
export class UnknownVoice extends BadRequest {}
export class AccessDenied extends ServerError {}
export class Overloaded extends ServerError {}
export class Unavailable extends ServerError {}
export class TooSlow extends ServerError {}
export class IdleTooLong extends ServerError {}
export class ServerFailed extends ServerError {}
export function serverError(fields: Record<string, unknown>): ServerError;
export function closeError(code: number, reason: string): ClientError;

export {}; // only what is exported above is public
