// One turn of a conversation as plain data, and how a stream's chunks change it.

/**
 * @typedef {"waiting" | "thinking" | "answering" | "calling" | "done" | "stopped" | "failed"} Phase
 * `waiting`: sent, and no token has come. The last three are final.
 */

export const FINAL = new Set(["done", "stopped", "failed"]);

export function userTurn(text) {
  return { id: newId(), role: "user", text };
}

/** The result of one tool call, written by the person in front of the page. */
export function toolTurn(call, text) {
  return { id: newId(), role: "tool", callId: call.id, name: call.name, text };
}

export function assistantTurn(now) {
  return {
    id: newId(),
    role: "assistant",
    phase: "waiting",
    reasoning: "",
    content: "",
    calls: [],
    callErrors: [],
    finish: null,
    failure: null,
    usage: null,
    report: null,
    format: "text",
    tokens: 0,
    at: { sent: now, first: null, thought: null, last: null },
  };
}

/** Takes one chunk of a chat completion. */
export function applyChunk(turn, chunk, now) {
  if (chunk.usage) turn.usage = chunk.usage;
  if (chunk.benthic?.reports) turn.report = chunk.benthic.reports[0];
  const choice = chunk.choices?.find((candidate) => candidate.index === 0);
  if (!choice) return;
  applyDelta(turn, choice.delta ?? {}, now);
  if (choice.tool_call_errors) turn.callErrors.push(...choice.tool_call_errors);
  if (choice.finish_reason) turn.finish = choice.finish_reason;
}

function applyDelta(turn, delta, now) {
  const { reasoning_content: reasoning, content, tool_calls: calls } = delta;
  if (!reasoning && !content && !calls?.length) return;
  turn.at.first ??= now;
  turn.at.last = now;
  turn.tokens += 1; // nearly: a chunk is a token unless a character or a marker took several
  if (reasoning) {
    turn.reasoning += reasoning;
    turn.phase = "thinking";
  }
  if (content || calls?.length) turn.at.thought ??= now;
  if (content) {
    turn.content += content;
    turn.phase = "answering";
  }
  for (const part of calls ?? []) {
    turn.phase = "calling";
    const call = (turn.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? "";
  }
}

const SHORTEST_S = 0.05;

/** Tokens a second since the first one; null before there is something to measure. `usage` comes at the end. */
export function tokensPerSecond(turn) {
  const tokens = turn.usage?.completion_tokens ?? turn.tokens;
  const seconds = (turn.at.last - turn.at.first) / 1000;
  return turn.at.first !== null && tokens > 1 && seconds >= SHORTEST_S ? (tokens - 1) / seconds : null;
}

/** Whether the model waits for the results of this turn's calls. */
export function wantsResults(turn) {
  return turn.role === "assistant" && turn.phase === "done" && turn.finish === "tool_calls" && turn.calls.length > 0;
}

/** How JSON in an answer stands: null when none was asked for. */
export function jsonState(turn) {
  if (!["json", "schema"].includes(turn.format) || !turn.content || !FINAL.has(turn.phase)) return null;
  try {
    return { isValid: true, text: JSON.stringify(JSON.parse(turn.content), null, 2) };
  } catch {
    return { isValid: false, text: turn.content };
  }
}

let count = 0;

function newId() {
  count += 1;
  return `turn-${Date.now().toString(36)}-${count}`;
}
