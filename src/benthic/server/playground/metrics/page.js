// The page of live charts. Samples are taken from the moment the page is opened, also while the chat is in front.

import { fetchMetrics } from "../api/client.js";
import { el, icon } from "../shell/dom.js";
import { CHARTS, TILES } from "./figures.js";
import { Chart } from "./chart.js";
import { History } from "./history.js";
import { segments } from "../settings/controls.js";

const PERIOD_MS = 2000;
const WINDOWS = [
  ["1", "1 min"],
  ["5", "5 min"],
  ["15", "15 min"],
];

export class MetricsPage {
  constructor() {
    this.#tiles = TILES.map(({ label }) => ({ value: el("dd", {}, "–"), label: el("dt", {}, label) }));
    this.#pause = el("button", {
      type: "button",
      class: "soft",
      "aria-pressed": "false",
      onClick: () => this.togglePause(),
    });
    this.#window = segments(
      "window",
      "Time shown",
      WINDOWS,
      () => String(this.#minutes),
      (value) => this.#show(Number(value)),
    );
    this.#notice = el("p", { class: "notice", role: "status", hidden: true });
    this.#grid = el("div", { class: "charts" });
    this.node = el(
      "section",
      { class: "metrics", "aria-labelledby": "metrics-title", hidden: true },
      el(
        "header",
        { class: "metrics-head" },
        el("h1", { id: "metrics-title" }, "Metrics"),
        this.#window.node,
        this.#pause,
      ),
      this.#notice,
      el(
        "dl",
        { class: "tiles" },
        this.#tiles.map(({ label, value }) => el("div", {}, label, value)),
      ),
      this.#grid,
      el(
        "p",
        { class: "note" },
        "Rates and quantiles are of the last 15 seconds. All numbers come from ",
        el("a", { href: "/metrics" }, "/metrics"),
        ".",
      ),
    );
    this.#labelPause();
    new ResizeObserver(() => this.#draw()).observe(this.#grid);
  }

  #history = new History([...TILES, ...CHARTS.flatMap(({ lines }) => lines)].map(({ figure }) => figure));
  #charts = new Map();
  #tiles;
  #pause;
  #window;
  #notice;
  #grid;
  #minutes = 5;
  #isPaused = false;
  #timer = 0;

  start() {
    this.#sample();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#sample();
    });
  }

  show(isShown) {
    this.node.hidden = !isShown;
    if (isShown) this.#draw();
  }

  /** While paused, samples are still taken and nothing moves. */
  togglePause() {
    this.#isPaused = !this.#isPaused;
    this.#labelPause();
    this.#draw();
  }

  #labelPause() {
    this.#pause.replaceChildren(icon(this.#isPaused ? "play" : "pause"), this.#isPaused ? "Go on" : "Pause");
    this.#pause.setAttribute("aria-pressed", String(this.#isPaused));
  }

  #show(minutes) {
    this.#minutes = minutes;
    this.#draw();
  }

  async #sample() {
    clearTimeout(this.#timer);
    try {
      this.#history.push(await fetchMetrics(), Date.now());
      this.#notice.hidden = true;
      if (!this.#isPaused) this.#draw();
    } catch {
      this.#notice.textContent = "The server does not answer; these are its last numbers.";
      this.#notice.hidden = false;
    }
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#sample(), PERIOD_MS);
  }

  #draw() {
    const { latest } = this.#history;
    if (this.node.hidden || latest === null) return;
    TILES.forEach(({ figure, format }, index) => {
      const value = this.#history.series(figure).at(-1).value;
      this.#tiles[index].value.textContent = value === null ? "–" : format(value);
    });
    for (const spec of CHARTS) this.#drawChart(spec, latest);
  }

  #drawChart(spec, latest) {
    const isKnown = latest.samples.has(`benthic_${spec.needs}`) && !spec.isHidden?.(latest);
    if (isKnown && !this.#charts.has(spec)) {
      const chart = new Chart(spec);
      this.#charts.set(spec, chart);
      const later = CHARTS.slice(CHARTS.indexOf(spec) + 1).find((other) => this.#charts.has(other));
      this.#grid.insertBefore(chart.node, later ? this.#charts.get(later).node : null);
    }
    if (isKnown) this.#charts.get(spec).update(this.#history, this.#minutes * 60_000);
  }
}
