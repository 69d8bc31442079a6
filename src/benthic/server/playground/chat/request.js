// From the settings and the turns to the body of a request.

import { NUMBERS } from "../settings/fields.js";
import { wantsResults } from "./turn.js";

/**
 * The body for POST /v1/chat/completions; what is left at its default is left out.
 * @throws {SyntaxError} a schema is no JSON; the panel shows where
 */
export function toBody(model, settings, turns) {
  return {
    model,
    messages: toMessages(settings.system, turns),
    ...thinking(settings),
    ...sampling(settings),
    ...format(settings),
    ...tools(settings),
  };
}

function toMessages(system, turns) {
  const answered = new Set(turns.filter((turn) => turn.role === "tool").map((turn) => turn.callId));
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") messages.push({ role: "user", content: turn.text });
    else if (turn.role === "tool") messages.push({ role: "tool", tool_call_id: turn.callId, content: turn.text });
    else if (wantsResults(turn) && turn.calls.every((call) => answered.has(call.id))) messages.push(callMessage(turn));
    else if (turn.content) messages.push(assistantMessage(turn));
  }
  return messages;
}

function assistantMessage(turn) {
  return { role: "assistant", content: turn.content, ...(turn.reasoning ? { reasoning_content: turn.reasoning } : {}) };
}

function callMessage(turn) {
  const calls = turn.calls.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  return { ...assistantMessage(turn), tool_calls: calls };
}

function thinking({ thinking: mode, effort, budget }) {
  if (mode === "default") return {};
  if (mode === "off") return { thinking: { type: "disabled" } };
  return {
    thinking: { type: "enabled" },
    ...(effort ? { reasoning_effort: effort } : {}),
    ...(budget === null ? {} : { thinking_budget: budget }),
  };
}

function sampling(settings) {
  const body = {};
  for (const { name } of NUMBERS) if (settings[name] !== null && name !== "budget") body[name] = settings[name];
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  return body;
}

function format({ format: kind, schema, regex }) {
  if (kind === "json") return { response_format: { type: "json_object" } };
  if (kind === "schema")
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } } };
  return kind === "regex" && regex ? { response_format: { type: "regex", regex } } : {};
}

function tools({ tools: all, toolChoice }) {
  const offered = all.filter((tool) => tool.enabled);
  if (!offered.length) return {};
  const named = offered.some((tool) => tool.name === toolChoice);
  const choice = named ? { type: "function", function: { name: toolChoice } } : toolChoice;
  return {
    tools: offered.map(({ name, description, parameters, isStrict }) => ({
      type: "function",
      function: {
        name,
        ...(description ? { description } : {}),
        parameters: JSON.parse(parameters),
        ...(isStrict ? { strict: true } : {}),
      },
    })),
    ...(choice === "auto" || (!named && !["none", "required"].includes(choice)) ? {} : { tool_choice: choice }),
  };
}

/** The request as a command line. The key is named, not shown. */
export function toCurl(body, origin, hasKey) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = hasKey ? ' \\\n  -H "authorization: Bearer $BENTHIC_API_KEY"' : "";
  return `curl ${origin}/v1/chat/completions \\\n  -H 'content-type: application/json'${key} \\\n  -d '${json}'`;
}
