// The server's address, and how a browser sends a key.

import { UsageError } from "./errors.js";

export const SUBPROTOCOL = "rt-drama3";
const KEY_PREFIX = "rt-drama3.key.";

/** The page's own server, or without a page the default address of `serve`. */
export function defaultServer() {
  const here = globalThis.location?.href;
  return here && /^https?:/.test(here) ? new URL("/", here).href : "http://127.0.0.1:8035/";
}

/**
 * @param {string} server http, https, ws or wss address, with or without a path before `/v1`.
 * @param {string} route such as "v1/stream".
 * @param {"ws" | "http"} kind
 */
export function routeUrl(server, route, kind) {
  let url;
  try {
    url = new URL(server);
  } catch {
    throw new UsageError(`invalid server address ${JSON.stringify(server)}.`, "Use a complete URL.");
  }
  const secure = { "http:": "", "ws:": "", "https:": "s", "wss:": "s" }[url.protocol];
  if (secure === undefined) {
    throw new UsageError(`the server's address starts with ${url.protocol}`, "Use http or https.");
  }
  const path = url.pathname.replace(/\/*$/, "/");
  return `${kind}${secure}://${url.host}${path}${route}`;
}

/**
 * Subprotocols to offer. A browser's WebSocket cannot set headers, and a key in the URL would end up
 * in logs, so the key is offered as a subprotocol, which the server never selects.
 *
 * @param {string | null | undefined} key
 */
export function subprotocols(key) {
  if (!key) return [SUBPROTOCOL];
  if (!/^[\x20-\x7e]+$/.test(key)) throw new UsageError("the API key is not printable ASCII.");
  const text = btoa(key).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return [SUBPROTOCOL, KEY_PREFIX + text];
}
