// One chart over time as SVG: lines or stacked areas, an axis, a legend with the values of now or under the pointer.

import { el, svg } from "../shell/dom.js";
import { ago, ticks } from "./scale.js";

const HEIGHT = 132;
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

export class Chart {
  /** @param {object} spec one of CHARTS */
  constructor(spec) {
    this.#spec = spec;
    this.#values = spec.lines.map(() => el("output", {}, "–"));
    this.#when = el("span", { class: "when" });
    this.#plot = svg("svg", { class: "plot", role: "img", height: HEIGHT });
    this.node = el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, el("h3", {}, spec.title), el("span", { class: "note" }, spec.note), this.#when),
      el(
        "ul",
        { class: "legend" },
        spec.lines.map(({ label, color }, index) =>
          el("li", { class: `key-${color}` }, `${label} `, this.#values[index]),
        ),
      ),
      this.#plot,
    );
    this.#plot.addEventListener("pointermove", (event) => this.#point(event));
    this.#plot.addEventListener("pointerleave", () => this.#unpoint());
  }

  #spec;
  #values;
  #when;
  #plot;
  #data = [];
  #range = [0, 1];
  #pointedAt = null;

  /**
   * @param {import("./history.js").History} history
   * @param {number} windowMs how far back the chart shows
   */
  update(history, windowMs) {
    const end = history.latest.at;
    this.#range = [end - windowMs, end];
    const data = this.#spec.lines.map(({ figure }) => history.series(figure));
    this.#data = data.map((points) => points.filter(({ at }) => at >= this.#range[0] - 3000));
    this.#draw();
  }

  #draw() {
    const width = Math.max(this.#plot.clientWidth, 160);
    const heights = this.#spec.isStacked ? stack(this.#data) : this.#data;
    const axis = ticks(Math.max(this.#spec.top ?? 0, highest(heights)), this.#spec);
    const x = (at) => LEFT + ((at - this.#range[0]) / (this.#range[1] - this.#range[0])) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / (axis.at(-1) || 1)) * (HEIGHT - TOP - BOTTOM);
    this.#plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#plot.setAttribute("aria-label", this.#describe());
    this.#plot.replaceChildren(
      ...this.#grid(axis, y, width),
      ...this.#spec.lines.flatMap((line, index) => this.#shapes(line, heights, index, x, y)).reverse(),
      ...this.#pointer(heights, x, y),
    );
    this.#label();
  }

  #grid(axis, y, width) {
    const lines = axis.map((value) =>
      svg("line", { class: value ? "grid" : "ground", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    );
    const names = axis.map((value) =>
      svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, this.#spec.format(value)),
    );
    names[0].textContent = "0";
    const span = this.#range[1] - this.#range[0];
    const times = [
      svg("text", { class: "tick", x: LEFT, y: HEIGHT - 4 }, ago(span)),
      svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
    ];
    const isEmpty = this.#data.every((points) => points.every(({ value }) => value === null));
    const empty =
      isEmpty &&
      svg("text", { class: "empty", x: (LEFT + width) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet");
    return [...lines, ...names, ...times, ...(empty ? [empty] : [])];
  }

  #shapes({ color }, heights, index, x, y) {
    return runs(heights[index]).flatMap((run) => {
      const path = run
        .map(({ at, value }, point) => `${point ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`)
        .join("");
      if (run.length === 1)
        return [svg("circle", { class: `dot color-${color}`, cx: x(run[0].at), cy: y(run[0].value), r: 2.5 })];
      const floor = this.#spec.isStacked && index ? heights[index - 1] : null;
      const fill = this.#spec.isStacked || index === 0;
      const shapes = [svg("path", { class: `line color-${color}`, d: path })];
      if (fill)
        shapes.push(
          svg("path", {
            class: `${this.#spec.isStacked ? "area solid" : "area"} color-${color}`,
            d: path + back(run, floor, x, y),
          }),
        );
      return shapes;
    });
  }

  #pointer(heights, x, y) {
    if (this.#pointedAt === null || !heights[0].length) return [];
    const index = nearest(heights[0], this.#pointedAt);
    const at = x(heights[0][index].at);
    const dots = heights.map((points, line) => {
      const value = points[index]?.value ?? null;
      return value === null
        ? null
        : svg("circle", { class: `dot color-${this.#spec.lines[line].color}`, cx: at, cy: y(value), r: 3.5 });
    });
    return [svg("line", { class: "pointer", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }), ...dots.filter(Boolean)];
  }

  #label() {
    const isPointed = this.#pointedAt !== null && this.#data[0].length > 0;
    const index = isPointed ? nearest(this.#data[0], this.#pointedAt) : this.#data[0].length - 1;
    this.#data.forEach((points, line) => {
      const value = points[index]?.value ?? null;
      this.#values[line].textContent = value === null ? "–" : this.#spec.format(value);
    });
    this.#when.textContent = isPointed ? ago(this.#range[1] - this.#data[0][index].at) : "";
  }

  #describe() {
    const parts = this.#spec.lines.map(({ label }, line) => {
      const value = this.#data[line].at(-1)?.value ?? null;
      return `${label} ${value === null ? "unknown" : this.#spec.format(value)}`;
    });
    return `${this.#spec.title}, ${this.#spec.note}: ${parts.join(", ")}`;
  }

  #point(event) {
    const box = this.#plot.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.#pointedAt = this.#range[0] + Math.min(1, Math.max(0, share)) * (this.#range[1] - this.#range[0]);
    this.#draw();
  }

  #unpoint() {
    this.#pointedAt = null;
    this.#draw();
  }
}

/** Each line on top of the one before it. */
function stack(lines) {
  const total = lines[0].map(() => 0);
  return lines.map((points) =>
    points.map(({ at, value }, index) => ({ at, value: value === null ? null : (total[index] += value) })),
  );
}

function highest(lines) {
  return Math.max(0, ...lines.flatMap((points) => points.map(({ value }) => value ?? 0)));
}

/** Stretches without a gap. */
function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point.value !== null) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((run) => run.length);
}

/** The way back under an area: along the line below it, or along the ground. */
function back(run, floor, x, y) {
  if (floor === null) return `L${x(run.at(-1).at).toFixed(1)} ${y(0)}L${x(run[0].at).toFixed(1)} ${y(0)}Z`;
  const below = new Map(floor.map(({ at, value }) => [at, value ?? 0]));
  return `${[...run]
    .reverse()
    .map(({ at }) => `L${x(at).toFixed(1)} ${y(below.get(at) ?? 0).toFixed(1)}`)
    .join("")}Z`;
}

function nearest(points, at) {
  let best = 0;
  points.forEach((point, index) => {
    if (Math.abs(point.at - at) < Math.abs(points[best].at - at)) best = index;
  });
  return best;
}
