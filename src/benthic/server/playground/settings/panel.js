// The panel beside the chat: what the next request will ask for.

import { el, iconButton } from "../shell/dom.js";
import { load, save } from "../shell/store.js";
import { numberRow, segments, selectRow, textRow } from "./controls.js";
import { EFFORTS, NUMBERS, defaultSettings, numChanged, restoreSettings, schemaProblem } from "./fields.js";
import { ToolSection } from "./tools.js";

export class SettingsPanel {
  /** @param {{onChange: (settings: object) => void, onClose: () => void}} actions */
  constructor({ onChange, onClose }) {
    this.settings = restoreSettings(load("settings", null));
    this.#onChange = onChange;
    this.#reset = el(
      "button",
      { type: "button", class: "quiet", onClick: () => this.apply(defaultSettings()) },
      "Reset",
    );
    this.#tools = new ToolSection(this.settings, () => this.#changed());
    this.#build();
    this.node = el(
      "aside",
      { class: "panel", id: "settings", "aria-label": "Settings", tabIndex: -1 },
      el(
        "header",
        { class: "panel-head" },
        el("h2", {}, "Settings"),
        this.#reset,
        iconButton("close", "Close settings", onClose),
      ),
      el("div", { class: "panel-body" }, this.#sections),
    );
    this.#refresh();
  }

  #onChange;
  #reset;
  #tools;
  #controls = [];
  #sections = [];
  #whenThinking;
  #whenSchema;

  /** Takes some settings over; the others stay. */
  apply(changes) {
    Object.assign(this.settings, structuredClone(changes));
    this.#changed();
  }

  /** Offers a tool, unless one of its name is offered. */
  offer(tool) {
    this.#tools.offer(tool);
  }

  #set(name) {
    return (value) => {
      this.settings[name] = value;
      this.#changed();
    };
  }

  #changed() {
    save("settings", this.settings);
    this.#refresh();
    this.#onChange(this.settings);
  }

  #refresh() {
    for (const control of this.#controls) control.refresh();
    this.#tools.refresh();
    this.#whenThinking.hidden = this.settings.thinking !== "on";
    this.#whenSchema.hidden = this.settings.format !== "schema";
    this.#reset.disabled = numChanged(this.settings) === 0 && this.settings.tools.length === 0;
  }

  #build() {
    const { settings } = this;
    const add = (control) => {
      this.#controls.push(control);
      return control.node;
    };
    const number = (name) =>
      add(
        numberRow(
          NUMBERS.find((field) => field.name === name),
          () => settings[name],
          this.#set(name),
        ),
      );
    const system = {
      id: "set-system",
      label: "Instructions",
      rows: 3,
      placeholder: "What the model should know or be (system prompt)",
    };
    const schema = {
      id: "set-schema",
      label: "JSON schema",
      rows: 9,
      isCode: true,
      problem: (text) => (settings.format === "schema" ? schemaProblem(text) : null),
    };
    const stop = { id: "set-stop", label: "Stop strings", rows: 2, placeholder: "One a line" };
    const efforts = () => EFFORTS.map((effort) => [effort, effort || "default"]);

    this.#whenThinking = el(
      "div",
      {},
      add(
        selectRow({ id: "set-effort", label: "Effort", options: efforts }, () => settings.effort, this.#set("effort")),
      ),
      number("budget"),
    );
    this.#whenSchema = el("div", {}, add(textRow(schema, () => settings.schema, this.#set("schema"))));
    const thinking = [
      ["default", "Default"],
      ["off", "Off"],
      ["on", "On"],
    ];
    const formats = [
      ["text", "Text"],
      ["json", "JSON"],
      ["schema", "Schema"],
    ];
    const plain = NUMBERS.filter((field) => !field.more && !field.isPlain).map(({ name }) => number(name));
    const more = NUMBERS.filter((field) => field.more).map(({ name }) => number(name));
    this.#sections = [
      section(null, add(textRow(system, () => settings.system, this.#set("system")))),
      section(
        "Thinking",
        add(segments("thinking", "Thinking", thinking, () => settings.thinking, this.#set("thinking"))),
        this.#whenThinking,
      ),
      section(
        "Answer format",
        add(segments("format", "Answer format", formats, () => settings.format, this.#set("format"))),
        this.#whenSchema,
      ),
      section("Tools", this.#tools.node),
      section(
        "Sampling",
        plain,
        number("seed"),
        el("details", { class: "more" }, el("summary", {}, "Penalties"), more),
      ),
      section("Length", number("max_tokens"), add(textRow(stop, () => settings.stop, this.#set("stop")))),
    ];
  }
}

function section(title, ...children) {
  return el("section", { class: "settings-section" }, title && el("h3", {}, title), children.flat());
}
