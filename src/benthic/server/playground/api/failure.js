// Whatever can go wrong with a request, as a title and a sentence for people, and what they can do about it.

/** @typedef {"key" | "settings" | "retry" | "shorten" | "none"} Remedy */

export class Failure extends Error {
  /**
   * @param {{title: string, message: string, status?: number, param?: string|null, remedy?: Remedy,
   *   retryAfter?: number|null}} facts
   */
  constructor({ title, message, status = 0, param = null, remedy = "retry", retryAfter = null }) {
    super(message);
    Object.assign(this, { title, status, param, remedy, retryAfter });
  }

  /** What is stored with a turn. */
  toJSON() {
    const { title, message, status, param, remedy, retryAfter } = this;
    return { title, message, status, param, remedy, retryAfter };
  }
}

/** No answer came, or it broke off. */
export function connectionFailure(hasBegun) {
  return hasBegun
    ? new Failure({
        title: "The connection broke off",
        message: "What arrived until then is above. The server may have been stopped.",
      })
    : new Failure({
        title: "The server cannot be reached",
        message: "Is it still running? This page tries again by itself and says when it is back.",
      });
}

/** From a status line and a body. */
export async function responseFailure(response) {
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // Not ours: a proxy's page.
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  return toFailure(response.status, error, Number.isFinite(seconds) ? seconds : null);
}

/** From an error object inside of a stream. */
export function streamFailure(error) {
  return toFailure(STATUS_OF[error?.code] ?? (error?.type === "server_error" ? 500 : 400), error, null);
}

const STATUS_OF = {
  cancelled: 409,
  engine_failed: 503,
  engine_unavailable: 503,
  needs_weights: 503,
  numbers_not_finite: 500,
  request_timeout: 504,
  server_overloaded: 429,
  shutting_down: 503,
};

function toFailure(status, error, retryAfter) {
  const message = sentence(error?.message ?? `It answered with status ${status}.`);
  const facts = { status, message, param: error?.param ?? null, retryAfter };
  if (status === 401)
    return new Failure({
      ...facts,
      title: "This server asks for a key",
      message: "Enter the key that it was started with.",
      remedy: "key",
    });
  if (error?.code === "context_length_exceeded") {
    const remedy = facts.param === "max_tokens" ? "settings" : "shorten";
    return new Failure({ ...facts, title: "This does not fit into the model's context", remedy });
  }
  if (status === 409) return new Failure({ ...facts, title: "The operator ended this answer" });
  if (status === 413) return new Failure({ ...facts, title: "This message is too large", remedy: "shorten" });
  if (status === 429) return new Failure({ ...facts, title: "The server is busy" });
  if (status === 503) return new Failure({ ...facts, title: "The server cannot answer right now" });
  if (status === 504) return new Failure({ ...facts, title: "The answer took too long" });
  if (status >= 500) return new Failure({ ...facts, title: "Something went wrong on the server" });
  return new Failure({ ...facts, title: "The server refused this request", remedy: "settings" });
}

function sentence(text) {
  const trimmed = text.trim();
  const upper = /^[a-z]+ /.test(trimmed) ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed;
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}
