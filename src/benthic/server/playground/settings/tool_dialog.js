// A dialog that defines one tool.

import { el, iconButton } from "../shell/dom.js";
import { closeOnBackdrop } from "../shell/keys.js";
import { textRow } from "./controls.js";
import { schemaProblem } from "./fields.js";

const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/;
const EMPTY = {
  name: "",
  description: "",
  parameters: '{\n  "type": "object",\n  "properties": {},\n  "required": []\n}',
};

export class ToolDialog {
  constructor() {
    this.#title = el("h2", { id: "tool-title" });
    this.#name = el("input", {
      id: "tool-name",
      type: "text",
      autocomplete: "off",
      spellcheck: false,
      placeholder: "get_weather",
      onInput: () => this.#showNameProblem(null),
    });
    this.#nameProblem = el("p", { class: "problem", id: "tool-name-problem", "aria-live": "polite" });
    this.#name.setAttribute("aria-describedby", "tool-name-problem");
    this.#description = el("input", {
      id: "tool-description",
      type: "text",
      placeholder: "What it does, and when to call it",
    });
    this.#strict = el("input", { id: "tool-strict", type: "checkbox" });
    const parameters = {
      id: "tool-parameters",
      label: "Parameters (JSON schema)",
      rows: 10,
      isCode: true,
      problem: schemaProblem,
    };
    this.#parameters = textRow(
      parameters,
      () => this.#text,
      (text) => {
        this.#text = text;
      },
    );
    this.node = el(
      "dialog",
      { class: "dialog wide", "aria-labelledby": "tool-title" },
      el(
        "form",
        { method: "dialog", noValidate: true, onSubmit: (event) => this.#submit(event) },
        el(
          "header",
          { class: "dialog-head" },
          this.#title,
          iconButton("close", "Close", () => this.node.close()),
        ),
        el("div", { class: "setting" }, el("label", { htmlFor: "tool-name" }, "Name"), this.#name, this.#nameProblem),
        el("div", { class: "setting" }, el("label", { htmlFor: "tool-description" }, "Description"), this.#description),
        this.#parameters.node,
        el(
          "div",
          { class: "check" },
          this.#strict,
          el("label", { htmlFor: "tool-strict" }, "Strict: arguments keep to the schema"),
        ),
        el(
          "footer",
          { class: "dialog-foot" },
          el("button", { type: "button", onClick: () => this.node.close() }, "Cancel"),
          el("button", { type: "submit", class: "primary" }, "Save tool"),
        ),
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
  #strict;
  #text = "";
  #taken = [];
  #edited = null;

  /**
   * @param {object|null} tool null for a new one
   * @param {string[]} taken names of the other tools
   * @returns {Promise<object|null>} the tool as it was saved, or null
   */
  open(tool, taken) {
    this.#title.textContent = tool ? `Edit ${tool.name}` : "New tool";
    tool ??= EMPTY;
    this.#name.value = tool.name;
    this.#description.value = tool.description;
    this.#strict.checked = tool.isStrict === true;
    this.#text = tool.parameters;
    this.#taken = taken;
    this.#edited = null;
    this.#showNameProblem(null);
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
    this.#showNameProblem(problem);
    if (problem !== null || schemaProblem(this.#text) !== null) {
      event.preventDefault();
      this.node.querySelector('[aria-invalid="true"]')?.focus();
      return;
    }
    this.#edited = {
      name,
      description: this.#description.value.trim(),
      parameters: this.#text,
      isStrict: this.#strict.checked,
    };
  }

  #showNameProblem(problem) {
    this.#nameProblem.textContent = problem ?? "";
    this.#name.setAttribute("aria-invalid", String(problem !== null));
  }

  #nameIssue(name) {
    if (!NAME.test(name)) return "Letters, digits, _ and -, beginning with a letter; at most 64";
    return this.#taken.includes(name) ? "Another tool has this name" : null;
  }
}
