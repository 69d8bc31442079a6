// Axes: round steps and what to write at them.

/**
 * Ticks from 0 to at least `highest`, in steps of 1, 2 or 5 times a power of ten.
 * @param {number} highest
 * @param {{isCount?: boolean, parts?: number}} [options] counts have no fractions
 * @returns {number[]} the last one is the end of the axis; 0 alone where nothing is above it
 */
export function ticks(highest, { isCount = false, parts = 3 } = {}) {
  if (!(highest > 1e-9)) return isCount ? [0, 1] : [0];
  const wanted = highest / parts;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = Math.max(
    [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= wanted * (1 - 1e-9)),
    isCount ? 1 : 0,
  );
  const count = Math.max(1, Math.ceil(highest / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** "now", "-30 s", "-5 min" */
export function ago(milliseconds) {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds <= 0) return "now";
  return seconds < 60 ? `${seconds} s ago` : `${Number((seconds / 60).toFixed(1))} min ago`;
}
