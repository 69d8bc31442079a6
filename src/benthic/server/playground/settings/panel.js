// The panel beside the chat: what the next request will ask for.

import { el, iconButton } from "../shell/dom.js";
import { load, save } from "../shell/store.js";
import { numberRow, segments, selectRow, textRow } from "./controls.js";
import { EFFORTS, NUMBERS, defaultSettings, numChanged, restoreSettings, schemaProblem } from "./fields.js";
import { ToolSection } from "./tools.js";

const THINKING = [
  ["default", "Default"],
  ["off", "Off"],
  ["on", "On"],
];
const FORMATS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["schema", "Schema"],
  ["regex", "Regex"],
];

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
  #whenRegex;

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
    this.#whenRegex.hidden = this.settings.format !== "regex";
    this.#reset.disabled = numChanged(this.settings) === 0 && this.settings.tools.length === 0;
  }

  #build() {
    const plain = NUMBERS.filter((field) => !field.more && !field.isPlain).map(({ name }) => this.#number(name));
    const more = NUMBERS.filter((field) => field.more).map(({ name }) => this.#number(name));
    const system = {
      id: "set-system",
      label: "Instructions",
      rows: 3,
      placeholder: "What the model should know or be (system prompt)",
    };
    const stop = { id: "set-stop", label: "Stop strings", rows: 2, placeholder: "One a line" };
    const penalties = el("details", { class: "more" }, el("summary", {}, "Penalties"), more);
    this.#sections = [
      section(null, this.#text("system", system)),
      this.#thinkingSection(),
      this.#formatSection(),
      section("Tools", this.#tools.node),
      section("Sampling", plain, this.#number("seed"), penalties),
      section("Length", this.#number("max_tokens"), this.#text("stop", stop)),
    ];
  }

  #thinkingSection() {
    const options = () => EFFORTS.map((effort) => [effort, effort || "default"]);
    const effort = selectRow({ id: "set-effort", label: "Effort", options }, this.#get("effort"), this.#set("effort"));
    this.#whenThinking = el("div", {}, this.#add(effort), this.#number("budget"));
    const choice = segments("thinking", "Thinking", THINKING, this.#get("thinking"), this.#set("thinking"));
    return section("Thinking", this.#add(choice), this.#whenThinking);
  }

  #formatSection() {
    const problem = (text) => (this.settings.format === "schema" ? schemaProblem(text) : null);
    const schema = { id: "set-schema", label: "JSON schema", rows: 9, isCode: true, problem };
    const regex = { id: "set-regex", label: "Expression", rows: 2, isCode: true, placeholder: "(yes|no)" };
    this.#whenSchema = el("div", {}, this.#text("schema", schema));
    this.#whenRegex = el("div", {}, this.#text("regex", regex));
    const choice = segments("format", "Answer format", FORMATS, this.#get("format"), this.#set("format"));
    return section("Answer format", this.#add(choice), this.#whenSchema, this.#whenRegex);
  }

  #add(control) {
    this.#controls.push(control);
    return control.node;
  }

  #get(name) {
    return () => this.settings[name];
  }

  #number(name) {
    const field = NUMBERS.find((candidate) => candidate.name === name);
    return this.#add(numberRow(field, this.#get(name), this.#set(name)));
  }

  #text(name, shape) {
    return this.#add(textRow(shape, this.#get(name), this.#set(name)));
  }
}

function section(title, ...children) {
  return el("section", { class: "settings-section" }, title && el("h3", {}, title), children.flat());
}
