// Every request of the page, with the key when there is one.

import { load, localArea, save, sessionArea } from "../shell/store.js";
import { readEvents } from "./events.js";
import { Failure, connectionFailure, responseFailure, streamFailure } from "./failure.js";

/** The key to send: of this tab, or of this browser if it was to be remembered. */
export function apiKey() {
  return load("key", null, sessionArea()) ?? load("key", null);
}

export function setApiKey(key, { remember }) {
  save("key", key || undefined, sessionArea());
  save("key", remember && key ? key : undefined, localArea());
}

/** The served model: {id, max_model_len}. */
export async function fetchModel() {
  const response = await send("/v1/models");
  return (await response.json()).data[0];
}

/** "ok", another state that the server names, or "away". */
export async function fetchHealth() {
  try {
    const response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    return (await response.json()).status ?? "away";
  } catch {
    return "away";
  }
}

/** The text of /metrics. */
export async function fetchMetrics() {
  return (await send("/metrics", { cache: "no-store", signal: AbortSignal.timeout(4000) })).text();
}

/**
 * The chunks of a chat completion as they come.
 * @param {object} body without `stream`
 * @param {AbortSignal} signal ends the request, and with it the server's work
 * @returns {AsyncGenerator<object>}
 * @throws {Failure} also when the stream ends without its last word
 */
export async function* streamChat(body, signal) {
  const options = { stream: true, stream_options: { include_usage: true }, return_report: true };
  const response = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, ...options }),
    signal,
  });
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw streamFailure(chunk.error);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Failure || signal.aborted) throw error;
    throw connectionFailure(true);
  }
  throw connectionFailure(true);
}

async function send(path, options = {}) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw connectionFailure(false);
  }
  if (!response.ok) throw await responseFailure(response);
  return response;
}
