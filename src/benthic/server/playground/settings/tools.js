// The tools that the next request offers.

import { el, icon, iconButton } from "../shell/dom.js";
import { selectRow } from "./controls.js";
import { EXAMPLE_TOOLS } from "./fields.js";
import { ToolDialog } from "./tool_dialog.js";

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
    this.#choice = selectRow(
      choice,
      () => settings.toolChoice,
      (value) => {
        settings.toolChoice = value;
        onChange();
      },
    );
    const add = el(
      "button",
      { type: "button", class: "soft", onClick: () => this.#edit(null) },
      icon("plus"),
      "Add a tool",
    );
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
      ...missing.map((example) =>
        el("button", { type: "button", class: "chip", onClick: () => this.offer(example) }, example.name),
      ),
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
    return [
      ["auto", "the model decides"],
      ["required", "must call one"],
      ["none", "must not call"],
      ...enabled.map(({ name }) => [name, `must call ${name}`]),
    ];
  }

  #remove(tool) {
    this.#settings.tools = this.#settings.tools.filter((other) => other !== tool);
    if (this.#settings.toolChoice === tool.name) this.#settings.toolChoice = "auto";
    this.#onChange();
  }

  async #edit(tool) {
    const others = this.#settings.tools.filter((other) => other !== tool).map(({ name }) => name);
    const edited = await this.#dialog.open(tool, others);
    if (edited === null) return;
    if (tool) Object.assign(tool, edited);
    else this.#settings.tools.push({ ...edited, enabled: true });
    this.#onChange();
  }
}
