// Samples of /metrics over time, and the figures that charts show: values, rates, quantiles.

import { parseMetrics } from "./prometheus.js";

const PREFIX = "benthic_";
const KEPT_MS = 15 * 60 * 1000;
/** Rates and quantiles look back so far: long enough for a few requests, short enough to follow a change. */
const LOOK_BACK_MS = 15_000;

/**
 * From a sample and an earlier one, at most LOOK_BACK_MS before it (null at first), to a number or null.
 * @typedef {(now: object, before: object|null) => number|null} Figure
 */

export class History {
  /** @param {Figure[]} figures computed once for each sample; the samples themselves are soon forgotten */
  constructor(figures) {
    this.#series = new Map(figures.map((figure) => [figure, []]));
  }

  #series;
  /** @type {{at: number, samples: Map<string, object[]>}[]} */
  #recent = [];

  /** Takes one answer of /metrics. */
  push(text, at) {
    const now = { at, samples: parseMetrics(text) };
    this.#recent = this.#recent.filter((sample) => sample.at >= at - LOOK_BACK_MS);
    const before = this.#recent[0] ?? null;
    this.#recent.push(now);
    for (const [figure, points] of this.#series) {
      if (before === null && points.length) points.push({ at: at - 1, value: null }); // a line does not cross a gap
      points.push({ at, value: figure(now, before) });
      while (points[0].at < at - KEPT_MS) points.shift();
    }
  }

  /** The last sample, or null. */
  get latest() {
    return this.#recent.at(-1) ?? null;
  }

  /**
   * One value for each sample of the last KEPT_MS.
   * @param {Figure} figure one of those given at first
   * @returns {{at: number, value: number|null}[]}
   */
  series(figure) {
    return this.#series.get(figure);
  }
}

/** The sum of a metric's samples whose labels pass. */
export function sum(point, name, passes = () => true) {
  const samples = point.samples.get(PREFIX + name);
  return samples ? samples.filter(({ labels }) => passes(labels)).reduce((total, { value }) => total + value, 0) : null;
}

/** How a metric stands. */
export const gauge = (name) => (now) => sum(now, name);

/** How much a counter rose a second; null where it began anew. */
export const perSecond = (name, passes) => (now, before) => {
  const risen = increase(name, passes)(now, before);
  return risen === null ? null : (1000 * risen) / (now.at - before.at);
};

/** How much a counter rose. */
export const increase = (name, passes) => (now, before) => {
  if (before === null) return null;
  const [last, first] = [sum(now, name, passes), sum(before, name, passes) ?? 0];
  return last === null || last < first ? null : last - first;
};

/** Of what was observed lately, the value below which a share `q` lies; null when nothing was. */
export const quantile = (name, q) => (now, before) => {
  if (before === null) return null;
  const counts = buckets(now, name);
  const past = new Map(buckets(before, name));
  return quantileOf(
    counts.map(([edge, count]) => [edge, count - (past.get(edge) ?? 0)]),
    q,
  );
};

function buckets(point, name) {
  const samples = point.samples.get(`${PREFIX}${name}_bucket`) ?? [];
  return samples
    .map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value])
    .sort(([a], [b]) => a - b);
}

/**
 * @param {[number, number][]} counts upper edges, ascending, and how many lie at or below each
 * @param {number} q in 0..1
 * @returns {number|null} interpolated within its bucket; the highest finite edge where it lies above that
 */
export function quantileOf(counts, q) {
  const total = counts.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const rank = q * total;
  let [edge, below] = [0, 0];
  for (const [upper, count] of counts) {
    if (count >= rank)
      return upper === Infinity ? edge : edge + ((upper - edge) * (rank - below)) / Math.max(count - below, 1e-9);
    [edge, below] = [upper, count];
  }
  return edge;
}
