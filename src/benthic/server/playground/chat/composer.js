// Where a message is written. One button sends, and stops while an answer comes, in the same place.

import { el, icon } from "../shell/dom.js";

const MAX_HEIGHT_PX = 240;

export class Composer {
  /**
   * @param {{send: (text: string) => void, stop: () => void, editLast: () => void, openSettings: () => void}} actions
   */
  constructor(actions) {
    this.#actions = actions;
    this.#area = el("textarea", {
      rows: 1,
      "aria-label": "Message",
      placeholder: "Message",
      enterKeyHint: "send",
      onInput: () => this.#fit(),
      onKeydown: (event) => this.#onKey(event),
    });
    this.#button = el("button", { type: "button", class: "send", onClick: () => this.#press() });
    this.#chips = el("div", { class: "chips" });
    this.#hint = el("span", { class: "hint" });
    this.node = el(
      "form",
      { class: "composer", onSubmit: (event) => event.preventDefault() },
      el("div", { class: "box" }, this.#area, this.#button),
      el("div", { class: "under" }, this.#chips, this.#hint),
    );
    this.setBusy(false);
  }

  #actions;
  #area;
  #button;
  #chips;
  #hint;
  #isBusy = false;
  #wantsResults = false;

  get text() {
    return this.#area.value;
  }

  set text(value) {
    this.#area.value = value;
    this.#fit();
  }

  focus() {
    this.#area.focus({ preventScroll: true });
  }

  setBusy(isBusy, { wantsResults = false } = {}) {
    this.#isBusy = isBusy;
    this.#wantsResults = wantsResults;
    this.#button.replaceChildren(icon(isBusy ? "stop" : "send"));
    const label = isBusy ? "Stop" : "Send";
    this.#button.setAttribute("aria-label", label);
    this.#button.title = isBusy ? "Stop (Esc)" : "Send (Enter)";
    this.#button.classList.toggle("is-stop", isBusy);
    this.#area.placeholder = wantsResults ? "First give the tool's result above" : "Message";
    this.#hint.replaceChildren(...hintParts(isBusy));
    this.#enable();
  }

  /** What is switched on for the next request, each a button that opens the settings. */
  setChips(labels) {
    this.#chips.replaceChildren(
      ...labels.map((label) =>
        el("button", { type: "button", class: "chip", onClick: () => this.#actions.openSettings() }, label),
      ),
    );
  }

  #press() {
    if (this.#isBusy) this.#actions.stop();
    else this.#send();
  }

  #send() {
    const text = this.text.trim();
    if (!text || this.#isBusy || this.#wantsResults) return;
    this.text = "";
    this.#actions.send(text);
  }

  #onKey(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && !this.text) {
      event.preventDefault();
      this.#actions.editLast();
    }
  }

  #fit() {
    this.#area.style.height = "auto";
    this.#area.style.height = `${Math.min(this.#area.scrollHeight, MAX_HEIGHT_PX)}px`;
    this.#enable();
  }

  #enable() {
    this.#button.disabled = !this.#isBusy && (!this.text.trim() || this.#wantsResults);
  }
}

function hintParts(isBusy) {
  return isBusy
    ? [el("kbd", {}, "Esc"), " stops"]
    : [el("kbd", {}, "Enter"), " sends, ", el("kbd", {}, "Shift"), " ", el("kbd", {}, "Enter"), " new line"];
}
