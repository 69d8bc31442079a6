// The tools that the next request offers: a list, and a dialog that defines one.

import { el, icon, iconButton } from "../shell/dom.js";
import { closeOnBackdrop } from "../shell/keys.js";
import { selectRow, textRow } from "./controls.js";
import { EXAMPLE_TOOLS, schemaProblem } from "./fields.js";

const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/;
const EMPTY = { name: "", description: "", parameters: '{\n  "type": "object",\n  "properties": {},\n  "required": []\n}' };

export class ToolSection {
  /**
   * @param {object} settings whose `tools` and `toolChoice` are changed in place
   * @param {() => void} onChange
   */
  constructor(settings, onChange) {
    this.#settings = settings;
    this.#onChange = onChange;
    this.#list = el("ul", { class: "tool-list" });
    this.#dialog = new ToolDialog();
    this.#examples = el("span", { class: "row wrap" });
    const choice = { id: "set-tool-choice", label: "Choice", options: () => this.#choices() };
    this.#choice = selectRow(choice, () => settings.toolChoice, (value) => {
      settings.toolChoice = value;
      onChange();
    });
    const add = el("button", { type: "button", class: "soft", onClick: () => this.#edit(null) }, icon("plus"), "Add a tool");
    this.node = el("div", {}, this.#list, el("div", { class: "row wrap" }, add), this.#examples, this.#choice.node);
  }

  #settings;
  #onChange;
  #list;
  #dialog;
  #examples;
  #choice;

  offer(tool) {
    const known = this.#settings.tools.find((other) => other.name === tool.name);
    if (known) known.enabled = true;
    else this.#settings.tools.push({ ...tool, enabled: true });
    this.#onChange();
  }

  refresh() {
    const { tools } = this.#settings;
    this.#list.replaceChildren(...tools.map((tool) => this.#row(tool)));
    this.#list.hidden = tools.length === 0;
    const missing = EXAMPLE_TOOLS.filter((example) => !tools.some((tool) => tool.name === example.name));
    this.#examples.hidden = tools.length > 0;
    this.#examples.replaceChildren(
      el("span", { class: "hint" }, "Examples"),
      ...missing.map((example) => el("button", { type: "button", class: "chip", onClick: () => this.offer(example) }, example.name)),
    );
    this.#choice.node.hidden = !tools.some((tool) => tool.enabled);
    this.#choice.refresh();
  }

  #row(tool) {
    const id = `tool-${tool.name}`;
    const toggle = () => {
      tool.enabled = !tool.enabled;
      this.#onChange();
    };
    return el(
      "li",
      {},
      el("input", { type: "checkbox", id, checked: tool.enabled, onChange: toggle }),
      el("label", { htmlFor: id }, tool.name),
      iconButton("edit", `Edit ${tool.name}`, () => this.#edit(tool)),
      iconButton("trash", `Remove ${tool.name}`, () => this.#remove(tool)),
    );
  }

  #choices() {
    const enabled = this.#settings.tools.filter((tool) => tool.enabled);
    return [["auto", "the model decides"], ["required", "must call one"], ["none", "must not call"], ...enabled.map(({ name }) => [name, `must call ${name}`])];
  }

  #remove(tool) {
    this.#settings.tools = this.#settings.tools.filter((other) => other !== tool);
    if (this.#settings.toolChoice === tool.name) this.#settings.toolChoice = "auto";
    this.#onChange();
  }

  async #edit(tool) {
    const others = this.#settings.tools.filter((other) => other !== tool).map(({ name }) => name);
    const edited = await this.#dialog.open(tool ?? EMPTY, others, tool === null);
    if (edited === null) return;
    if (tool) Object.assign(tool, edited);
    else this.#settings.tools.push({ ...edited, enabled: true });
    this.#onChange();
  }
}

class ToolDialog {
  constructor() {
    this.#title = el("h2", { id: "tool-title" });
    this.#name = el("input", { id: "tool-name", type: "text", autocomplete: "off", spellcheck: false, placeholder: "get_weather" });
    this.#nameProblem = el("p", { class: "problem", id: "tool-name-problem", "aria-live": "polite" });
    this.#name.setAttribute("aria-describedby", "tool-name-problem");
    this.#description = el("input", { id: "tool-description", type: "text", placeholder: "What it does, and when to call it" });
    const parameters = { id: "tool-parameters", label: "Parameters (JSON schema)", rows: 10, isCode: true, problem: schemaProblem };
    this.#parameters = textRow(parameters, () => this.#text, (text) => {
      this.#text = text;
    });
    this.node = el(
      "dialog",
      { class: "dialog wide", "aria-labelledby": "tool-title" },
      el(
        "form",
        { method: "dialog", noValidate: true, onSubmit: (event) => this.#submit(event) },
        el("header", { class: "dialog-head" }, this.#title, iconButton("close", "Close", () => this.node.close())),
        el("div", { class: "setting" }, el("label", { htmlFor: "tool-name" }, "Name"), this.#name, this.#nameProblem),
        el("div", { class: "setting" }, el("label", { htmlFor: "tool-description" }, "Description"), this.#description),
        this.#parameters.node,
        el("footer", { class: "dialog-foot" }, el("button", { type: "button", onClick: () => this.node.close() }, "Cancel"), el("button", { type: "submit", class: "primary" }, "Save tool")),
      ),
    );
    closeOnBackdrop(this.node);
    document.body.append(this.node);
  }

  #title;
  #name;
  #nameProblem;
  #description;
  #parameters;
  #text = "";
  #taken = [];
  #edited = null;

  /** The tool as it was saved, or null. */
  open(tool, taken, isNew) {
    this.#title.textContent = isNew ? "New tool" : `Edit ${tool.name}`;
    this.#name.value = tool.name;
    this.#description.value = tool.description;
    this.#text = tool.parameters;
    this.#taken = taken;
    this.#edited = null;
    this.#nameProblem.textContent = "";
    this.#name.setAttribute("aria-invalid", "false");
    this.#parameters.refresh();
    this.node.showModal();
    this.#name.focus();
    return new Promise((resolve) => {
      this.node.addEventListener("close", () => resolve(this.#edited), { once: true });
    });
  }

  #submit(event) {
    const name = this.#name.value.trim();
    const problem = this.#nameIssue(name);
    this.#nameProblem.textContent = problem ?? "";
    this.#name.setAttribute("aria-invalid", String(problem !== null));
    if (problem !== null || schemaProblem(this.#text) !== null) {
      event.preventDefault();
      this.node.querySelector('[aria-invalid="true"]')?.focus();
      return;
    }
    this.#edited = { name, description: this.#description.value.trim(), parameters: this.#text };
  }

  #nameIssue(name) {
    if (!NAME.test(name)) return "Letters, digits, _ and -, beginning with a letter; at most 64";
    return this.#taken.includes(name) ? "Another tool has this name" : null;
  }
}
