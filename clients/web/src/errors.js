// Error classes.

/** Base of all errors of this package. */
export class ClientError extends Error {
  /**
   * @param {string} message what was wrong, with the value.
   * @param {{code?: string, remedy?: string, retriable?: boolean, requestId?: string | null,
   *     scope?: string}} [more]
   */
  constructor(message, more = {}) {
    super(more.remedy ? `${message} ${more.remedy}` : message);
    this.code = more.code ?? "client_error";
    this.remedy = more.remedy ?? "";
    this.retriable = more.retriable ?? false;
    this.requestId = more.requestId ?? null;
    this.scope = more.scope ?? null;
    /** What was received of the utterance before. */
    this.received = { samples: 0, seconds: 0 };
  }
}

/** The package was called with invalid arguments; nothing was sent. */
export class UsageError extends ClientError {
  constructor(message, remedy = "") {
    super(message, { code: "usage", remedy });
  }
}

/** The connection could not be opened. */
export class ConnectFailed extends ClientError {
  constructor(message) {
    const remedy = "Check the address, that the server is running, and that it allows this page's "
      + "origin; its log has the reason of a refusal.";
    super(message, { code: "connect_failed", remedy, retriable: true });
  }
}

/** The connection was lost during an utterance. */
export class ConnectionLost extends ClientError {
  constructor(message) {
    const remedy = "Repeat the part that was not heard.";
    super(message, { code: "connection_lost", remedy, retriable: true });
  }
}

/** The server did not respond in time. */
export class ServerSilent extends ClientError {
  constructor(message) {
    super(message, { code: "timeout", remedy: "Try again.", retriable: true });
  }
}

/** The server sent something that is not a message of the protocol. */
export class BadServerMessage extends ClientError {
  constructor(message) {
    const remedy = "Check that the address is an rt-drama3 server of a compatible version.";
    super(message, { code: "bad_server_message", remedy });
  }
}

/** The utterance was cancelled while text was pushed or its audio was read. */
export class SpeechCancelled extends ClientError {
  constructor(message = "the utterance was cancelled.") {
    super(message, { code: "cancelled" });
  }
}

/** The client or player was closed. */
export class ClientClosed extends ClientError {
  constructor(message = "the client was closed.") {
    super(message, { code: "closed", remedy: "Create a new one." });
  }
}

/** The browser does not allow playback before a click or key press. */
export class AutoplayBlocked extends ClientError {
  constructor() {
    const remedy = "Call player.resume() in a click or key handler.";
    super("the browser does not allow this page to play yet.", { code: "autoplay", remedy });
  }
}

/** This browser lacks something that playback needs. */
export class PlayerUnavailable extends ClientError {
  constructor(message, remedy = "Use a current browser, over https or on localhost.") {
    super(message, { code: "player_unavailable", remedy });
  }
}

/** Too much audio is waiting to be played. */
export class PlayerFull extends ClientError {
  constructor(message) {
    super(message, { code: "player_full", remedy: "Speak shorter texts, one after the other." });
  }
}

/** The server refused the request or failed; there are subclasses for common kinds. */
export class ServerError extends ClientError {}
/** The request is invalid; sending it again will not help. */
export class BadRequest extends ServerError {}
/** There is no stored voice of that name. */
export class UnknownVoice extends BadRequest {}
/** The key is missing or wrong, or this origin may not connect. */
export class AccessDenied extends ServerError {}
/** The server, or this connection, is at capacity. */
export class Overloaded extends ServerError {}
/** The server is starting, stopping, or its engine failed. */
export class Unavailable extends ServerError {}
/** The audio was read more slowly than real time, and the server ended it. */
export class TooSlow extends ServerError {}
/** The connection was idle for too long. */
export class IdleTooLong extends ServerError {}
/** An internal error of the server; its logs have details under the request id. */
export class ServerFailed extends ServerError {}

// Spelled out, since bundlers rename classes.
for (const [name, kind] of Object.entries({
  ClientError, UsageError, ConnectFailed, ConnectionLost, ServerSilent, BadServerMessage,
  SpeechCancelled, ClientClosed, AutoplayBlocked, PlayerUnavailable, PlayerFull, ServerError,
  BadRequest, UnknownVoice, AccessDenied, Overloaded, Unavailable, TooSlow, IdleTooLong, ServerFailed,
})) {
  Object.defineProperty(kind.prototype, "name", { value: name, configurable: true, writable: true });
}

const KINDS = new Map([
  ["unknown_voice", UnknownVoice],
  ["unauthorized", AccessDenied],
  ["forbidden", AccessDenied],
  ["overloaded", Overloaded],
  ["backlog_full", Overloaded],
  ["too_many_messages", Overloaded],
  ["not_ready", Unavailable],
  ["shutting_down", Unavailable],
  ["engine_failed", Unavailable],
  ["stopped", Unavailable],
  ["slow_client", TooSlow],
  ["idle", IdleTooLong],
  ["internal", ServerFailed],
]);
for (const code of [
  "bad_message", "too_large", "too_complex", "unknown_type", "unsupported_version",
  "unsupported_media_type", "bad_field", "unsupported_format", "out_of_order", "bad_text",
  "text_too_long", "bad_reference", "bad_request", "too_many_errors", "no_such_route",
]) {
  KINDS.set(code, BadRequest);
}

/**
 * Returns the error of the class for a code; `ServerError` itself for an unknown one.
 *
 * @param {Record<string, unknown>} fields of the server's `error` message or HTTP error.
 */
export function serverError(fields) {
  const code = String(fields.code ?? "server_error");
  const Kind = KINDS.get(code) ?? ServerError;
  return new Kind(String(fields.message ?? "the server refused the request."), {
    code,
    remedy: String(fields.remedy ?? ""),
    retriable: fields.retriable === true,
    requestId: typeof fields.id === "string" ? fields.id : (fields.request_id ?? null),
    scope: typeof fields.scope === "string" ? fields.scope : "utterance",
  });
}

// The server's close codes, for connections that closed without an error message.
const CLOSES = new Map([
  [1001, ["shutting_down", "the server is shutting down.", true]],
  [1013, ["overloaded", "the server is at capacity.", true]],
  [4401, ["unauthorized", "the server requires a valid key.", false]],
  [4403, ["forbidden", "the server does not allow this page's origin.", false]],
  [4408, ["idle", "the connection was idle for too long.", true]],
  [4409, ["slow_client", "the audio was not read fast enough.", true]],
  [4429, ["too_many_messages", "the server received too many messages.", true]],
]);

/**
 * @param {number} code code of the WebSocket's close event.
 * @param {string} reason its reason.
 */
export function closeError(code, reason) {
  const known = CLOSES.get(code);
  if (!known) {
    const why = reason ? `${code}, ${JSON.stringify(reason.slice(0, 100))}` : `${code}`;
    return new ConnectionLost(`the connection ended (${why}).`);
  }
  const [name, message, retriable] = known;
  return serverError({ code: name, message, retriable, scope: "connection" });
}
