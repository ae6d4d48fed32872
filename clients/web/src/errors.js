// What can go wrong, as classes: catch the kind that you can do something about.

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
    /** What had come of the utterance before. */
    this.received = { samples: 0, seconds: 0 };
  }
}

/** The package was called in a way that cannot work; nothing was sent. */
export class UsageError extends ClientError {
  constructor(message, remedy = "") {
    super(message, { code: "usage", remedy });
  }
}

/** No connection could be opened. */
export class ConnectFailed extends ClientError {
  constructor(message) {
    const remedy = "Check the address, that the server runs, and that it lets this page's origin in; "
      + "its log says why it refused.";
    super(message, { code: "connect_failed", remedy, retriable: true });
  }
}

/** The connection ended in the middle. */
export class ConnectionLost extends ClientError {
  constructor(message) {
    const remedy = "Speak again what was not heard.";
    super(message, { code: "connection_lost", remedy, retriable: true });
  }
}

/** The server owed a word and said none in time. */
export class ServerSilent extends ClientError {
  constructor(message) {
    super(message, { code: "timeout", remedy: "Try again.", retriable: true });
  }
}

/** What came is not a message of the protocol. */
export class BadServerMessage extends ClientError {
  constructor(message) {
    const remedy = "Check that the address is an rt-drama3 server, and that its version fits.";
    super(message, { code: "bad_server_message", remedy });
  }
}

/** The utterance was cancelled while somebody still pushed text or read its audio. */
export class SpeechCancelled extends ClientError {
  constructor(message = "the utterance was cancelled.") {
    super(message, { code: "cancelled" });
  }
}

/** The client or player was closed. */
export class ClientClosed extends ClientError {
  constructor(message = "the client was closed.") {
    super(message, { code: "closed", remedy: "Make another one." });
  }
}

/** The browser plays nothing yet: it wants a click or a key first. */
export class AutoplayBlocked extends ClientError {
  constructor() {
    const remedy = "Call player.resume() in a click or key handler.";
    super("the browser does not let this page play yet.", { code: "autoplay", remedy });
  }
}

/** This browser lacks something that playing needs. */
export class PlayerUnavailable extends ClientError {
  constructor(message, remedy = "Use a current browser, over https or on localhost.") {
    super(message, { code: "player_unavailable", remedy });
  }
}

/** More audio waits to be played than may wait. */
export class PlayerFull extends ClientError {
  constructor(message) {
    super(message, { code: "player_full", remedy: "Speak shorter texts, one after the other." });
  }
}

/** The server refused or failed; subclasses tell the common kinds. */
export class ServerError extends ClientError {}
/** Something in the request is wrong; sending it again will not help. */
export class BadRequest extends ServerError {}
/** No voice of that name is stored. */
export class UnknownVoice extends BadRequest {}
/** The key is missing or wrong, or this origin may not connect. */
export class AccessDenied extends ServerError {}
/** More is asked of the server, or of this connection, than can be served now. */
export class Overloaded extends ServerError {}
/** The server is starting, stopping, or its engine failed. */
export class Unavailable extends ServerError {}
/** The audio was not read as fast as it is played, and the server ended it. */
export class TooSlow extends ServerError {}
/** The connection was not used for long. */
export class IdleTooLong extends ServerError {}
/** A fault of the server; its operator finds more under the request id. */
export class ServerFailed extends ServerError {}

// Spelled out, since bundlers give classes names of their own.
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
 * The error of the class that fits the code; `ServerError` itself for an unknown one.
 *
 * @param {Record<string, unknown>} fields of the server's `error` message or HTTP error.
 */
export function serverError(fields) {
  const code = String(fields.code ?? "server_error");
  const Kind = KINDS.get(code) ?? ServerError;
  return new Kind(String(fields.message ?? "the server refused."), {
    code,
    remedy: String(fields.remedy ?? ""),
    retriable: fields.retriable === true,
    requestId: typeof fields.id === "string" ? fields.id : (fields.request_id ?? null),
    scope: typeof fields.scope === "string" ? fields.scope : "utterance",
  });
}

// What the server's close codes say where no message could.
const CLOSES = new Map([
  [1001, ["shutting_down", "the server stops.", true]],
  [1013, ["overloaded", "the server has no room now.", true]],
  [4401, ["unauthorized", "the server wants a valid key.", false]],
  [4403, ["forbidden", "the server does not allow this page's origin.", false]],
  [4408, ["idle", "the connection was not used for long.", true]],
  [4409, ["slow_client", "the audio was not taken fast enough.", true]],
  [4429, ["too_many_messages", "the server got too many messages.", true]],
]);

/**
 * @param {number} code of the WebSocket's close event.
 * @param {string} reason of it.
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
