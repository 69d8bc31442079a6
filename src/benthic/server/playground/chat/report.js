// The small print under an answer: how fast it came, and where its prompt came from.

import { el } from "../shell/dom.js";
import { count, duration, rate } from "../shell/numbers.js";
import { tokensPerSecond } from "./turn.js";

/** Why reuse ended where it did, in words for people. */
const CUT = {
  "whole prompt": "Everything that can be reused was: only the last tokens had to be computed.",
  "no such prefix": "The rest of this prompt was new.",
  "no window": "Compressed entries reach further, but no window was kept there to go on from.",
  "no extras": "The next page is cached without what this request wants returned.",
  "namespace empty": "Nothing was in the cache yet for these weights.",
  "shorter than a page": "The prompt is shorter than a page, so there is nothing to look up.",
  "not asked": "The request asked to compute the whole prompt.",
  fork: "Taken over from a sibling that had computed the prompt.",
  "not admitted": "The request ended before it was admitted.",
};

/** "53 tokens · 212 tokens/s · first after 80 ms · 128 of 266 prompt tokens from the cache" */
export function summaryParts(turn) {
  const parts = [];
  const tokens = turn.usage?.completion_tokens ?? turn.tokens;
  if (tokens) parts.push(count(tokens, "token"));
  const speed = tokensPerSecond(turn);
  if (speed !== null) parts.push(rate(speed));
  if (turn.usage) parts.push(`${share(turn.usage)} % cached`);
  return parts;
}

function share({ prompt_tokens: all, prompt_cache_hit_tokens: hit }) {
  return all ? Math.round((100 * hit) / all) : 0;
}

/** The opened report; empty while there is nothing to tell. */
export function reportBody(turn) {
  const { usage, report } = turn;
  if (!usage || !report) return [];
  const matched = Math.max(0, report.compressed_match - report.usable_match);
  const fresh = report.prompt_len - report.usable_match - matched;
  return [
    el("h4", {}, "Prompt"),
    bar([
      { kind: "cached", amount: report.usable_match, label: "from the cache" },
      { kind: "matched", amount: matched, label: "known, but without a window" },
      { kind: "fresh", amount: fresh, label: "computed" },
    ]),
    el("p", { class: "note" }, CUT[report.cut] ?? `Reuse ended: ${report.cut}.`),
    el("h4", {}, "Answer"),
    facts(turn),
  ];
}

function bar(parts) {
  const shown = parts.filter(({ amount }) => amount > 0);
  const total = shown.reduce((sum, { amount }) => sum + amount, 0);
  const strip = el(
    "div",
    { class: "bar", "aria-hidden": "true" },
    shown.map(({ kind, amount }) => {
      const piece = el("span", { class: kind });
      piece.style.flexGrow = amount / total;
      return piece;
    }),
  );
  const legend = el(
    "ul",
    { class: "legend" },
    shown.map(({ kind, amount, label }) => el("li", { class: kind }, `${amount.toLocaleString("en")} ${label}`)),
  );
  return el("div", {}, strip, legend);
}

function facts(turn) {
  const { usage, report, at } = turn;
  const reasoning = usage.completion_tokens_details?.reasoning_tokens;
  const rows = [
    [
      "Tokens",
      usage.completion_tokens.toLocaleString("en") +
        (reasoning ? `, of these ${reasoning.toLocaleString("en")} thinking` : ""),
    ],
    ["First token", at.first === null ? "none" : `after ${duration((at.first - at.sent) / 1000)}`],
    ["Queued", duration(report.queued_s)],
    report.drafted > 0 && ["Drafts", `${report.accepted} of ${report.drafted} accepted`],
    report.num_retractions > 0 && ["Put aside", count(report.num_retractions, "time")],
    report.replayed > 0 && ["Replayed", `${count(report.replayed, "token")}, to restore windows`],
    report.weight_versions.some((version) => version > 0) && [
      "Weights",
      `version ${report.weight_versions.join(", ")}`,
    ],
    turn.finish && ["Ended", FINISH[turn.finish] ?? turn.finish],
  ];
  return el(
    "dl",
    { class: "facts" },
    rows.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

const FINISH = { stop: "by itself", length: "at the limit of tokens", tool_calls: "with a tool call" };
