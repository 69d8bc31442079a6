// The Prometheus text format, as far as a page of charts needs it.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/**
 * @param {string} text of /metrics
 * @returns {Map<string, {labels: Record<string, string>, value: number}[]>} samples by name
 */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels: parseLabels(labels ?? ""), value: toNumber(value) });
  }
  return samples;
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL))
    labels[name] = value.replace(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));
  return labels;
}

function toNumber(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}
