// Numbers and durations for people.

/** 1 token, 12 tokens, 1,200 tokens */
export function count(amount, noun) {
  return `${amount.toLocaleString("en")} ${noun}${amount === 1 ? "" : "s"}`;
}

/** 212 tokens/s, 8.4 tokens/s */
export function rate(value) {
  return `${short(value)} tokens/s`;
}

/** 3 digits that matter, thousands as k and M. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return trim(value);
}

function trim(value) {
  const size = Math.abs(value);
  return size >= 100
    ? Math.round(value).toLocaleString("en")
    : size >= 10
      ? dropZeros(value.toFixed(1))
      : dropZeros(value.toFixed(2));
}

function dropZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** 0, 0.4 ms, 80 ms, 1.2 s, 2 min 5 s */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 5e-6) return "0 ms";
  if (seconds < 1) return `${trim(seconds * 1000)} ms`;
  if (seconds < 60) return `${trim(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** 12 % */
export function percent(value) {
  return Number.isFinite(value) ? `${trim(100 * value)} %` : "–";
}
