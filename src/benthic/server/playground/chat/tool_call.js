// A tool call: its name and arguments, and a form for its result while the model waits for one.

import { el, icon } from "../shell/dom.js";

export class ToolCallCard {
  /**
   * @param {{onResult: (text: string) => void}} actions
   */
  constructor({ onResult }) {
    this.#name = el("span", { class: "call-name" });
    this.#state = el("span", { class: "call-state" });
    this.#arguments = el("code");
    this.#result = el("div", { class: "call-result" });
    this.#onResult = onResult;
    this.node = el(
      "section",
      { class: "call" },
      el("header", {}, icon("tool"), this.#name, this.#state),
      el("pre", { tabIndex: 0, "aria-label": "Arguments" }, this.#arguments),
      this.#result,
    );
  }

  #name;
  #state;
  #arguments;
  #result;
  #onResult;
  #shown = null;

  /**
   * @param {{name: string, arguments: string}} call
   * @param {"writing" | "open" | "answered" | "void"} state
   * @param {string} [result]
   */
  update(call, state, result) {
    this.#name.textContent = call.name;
    this.#arguments.textContent = state === "writing" ? call.arguments : pretty(call.arguments);
    this.#state.textContent = STATE[state];
    if (this.#shown === state) return;
    this.#shown = state;
    this.node.dataset.state = state;
    if (state === "open") this.#result.replaceChildren(this.#form(call));
    else if (state === "answered")
      this.#result.replaceChildren(el("h4", {}, "Result"), el("pre", { tabIndex: 0 }, el("code", {}, pretty(result))));
    else this.#result.replaceChildren();
  }

  focus() {
    this.#result.querySelector("textarea")?.focus();
  }

  #form(call) {
    const id = `result-${call.id}`;
    const area = el("textarea", {
      id,
      rows: 2,
      spellcheck: false,
      placeholder: '{"temperature": 19, "condition": "sunny"}',
    });
    const send = el("button", { type: "submit", class: "primary" }, "Send result");
    const form = el(
      "form",
      { onSubmit: (event) => this.#submit(event, area) },
      el("label", { htmlFor: id }, `What does ${call.name} return?`),
      area,
      el(
        "div",
        { class: "row" },
        el("span", { class: "hint" }, el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "Enter")),
        send,
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    return form;
  }

  #submit(event, area) {
    event.preventDefault();
    if (area.value.trim()) this.#onResult(area.value);
    else area.focus();
  }
}

const STATE = { writing: "writing", open: "waits for its result", answered: "answered", void: "not carried out" };

function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}
