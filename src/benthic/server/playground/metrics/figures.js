// Which charts and tiles the metrics page has, as a table. A chart whose metrics the server does not have is left out.

import { duration, percent, short } from "../shell/numbers.js";
import { gauge, increase, perSecond, quantile, sum } from "./history.js";

const isStatus =
  (first) =>
  ({ status }) =>
    status?.startsWith(first);

function latency(title, name, note) {
  return {
    title,
    note,
    needs: `${name}_bucket`,
    format: duration,
    lines: [
      { label: "median", color: "a", figure: quantile(name, 0.5) },
      { label: "95 %", color: "b", figure: quantile(name, 0.95) },
    ],
  };
}

/** @typedef {{label: string, color: "a"|"b"|"c", figure: Function}} Line */

/** `stacked` draws areas on one another; `top` is where the axis ends at least. */
export const CHARTS = [
  {
    title: "Throughput",
    note: "tokens a second",
    needs: "generation_tokens_total",
    format: short,
    lines: [
      { label: "generated", color: "a", figure: perSecond("generation_tokens_total") },
      { label: "prompt", color: "b", figure: perSecond("prompt_tokens_total") },
    ],
  },
  {
    title: "Sequences",
    note: "in the engine",
    needs: "num_running_reqs",
    format: short,
    top: 4,
    isCount: true,
    lines: [
      { label: "running", color: "a", figure: gauge("num_running_reqs") },
      { label: "waiting", color: "b", figure: gauge("num_queue_reqs") },
    ],
  },
  latency("First token", "time_to_first_token_seconds", "from arrival"),
  latency("Between tokens", "inter_token_latency_seconds", "from token to token"),
  latency("Whole answer", "e2e_request_latency_seconds", "from arrival to the last token"),
  latency("Queue", "queue_time_seconds", "before the engine admits it"),
  {
    title: "Cache hits",
    note: "share of prompt tokens",
    needs: "cached_tokens_total",
    format: percent,
    top: 1,
    lines: [{ label: "cached", color: "a", figure: cachedShare }],
  },
  {
    title: "Pages",
    note: "of the cache",
    needs: "kv_used_pages",
    format: short,
    isStacked: true,
    lines: [
      { label: "in use", color: "a", figure: gauge("kv_used_pages") },
      { label: "kept", color: "b", figure: gauge("kv_evictable_pages") },
      { label: "free", color: "rest", figure: gauge("kv_available_pages") },
    ],
  },
  {
    title: "Windows",
    note: "of the cache",
    needs: "swa_used_windows",
    format: short,
    isStacked: true,
    lines: [
      { label: "in use", color: "a", figure: gauge("swa_used_windows") },
      { label: "kept", color: "b", figure: gauge("swa_evictable_windows") },
      { label: "free", color: "rest", figure: gauge("swa_available_windows") },
    ],
  },
  {
    title: "Drafts",
    note: "share accepted",
    needs: "spec_drafted_tokens_total",
    isHidden: (point) => !sum(point, "spec_drafted_tokens_total"),
    format: percent,
    top: 1,
    lines: [{ label: "accepted", color: "a", figure: draftShare }],
  },
  {
    ...latency("Grammars", "grammar_compilation_time_seconds", "to compile a new one"),
    isHidden: (point) => !sum(point, "grammar_compilation_time_seconds_count"),
  },
  {
    title: "Answers",
    note: "requests a second, probes left out",
    needs: "requests_total",
    format: short,
    lines: [
      { label: "good", color: "a", figure: perSecond("requests_total", isStatus("2")) },
      { label: "refused", color: "b", figure: perSecond("requests_total", isStatus("4")) },
      { label: "failed", color: "c", figure: perSecond("requests_total", isStatus("5")) },
    ],
  },
];

function cachedShare(now, before) {
  const all = increase("prompt_tokens_total")(now, before);
  return all ? increase("cached_tokens_total")(now, before) / all : null;
}

function draftShare(now, before) {
  const all = increase("spec_drafted_tokens_total")(now, before);
  return all ? increase("spec_accepted_tokens_total")(now, before) / all : null;
}

/** Numbers at the top: how it stands at this moment. `figure` as for charts. */
export const TILES = [
  { label: "Generated tokens/s", figure: perSecond("generation_tokens_total"), format: short },
  { label: "Running", figure: gauge("num_running_reqs"), format: short },
  { label: "Waiting", figure: gauge("num_queue_reqs"), format: short },
  { label: "Cache hits, all time", figure: (now) => sum(now, "cache_hit_rate"), format: percent },
  { label: "Memory in use", figure: (now) => sum(now, "token_usage"), format: percent },
  { label: "Tokens, all time", figure: (now) => sum(now, "generation_tokens_total"), format: short },
];
