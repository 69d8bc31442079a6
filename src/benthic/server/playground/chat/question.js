// One message of the person on the page.

import { copyFrom, el, icon } from "../shell/dom.js";

export class QuestionView {
  /**
   * @param {{text: string}} turn
   * @param {{edit: (turn: object) => void}} actions
   */
  constructor(turn, actions) {
    this.turn = turn;
    const copy = el(
      "button",
      { type: "button", class: "quiet", onClick: () => copyFrom(copy, turn.text) },
      icon("copy"),
      el("span", {}, "Copy"),
    );
    const edit = el(
      "button",
      { type: "button", class: "quiet", onClick: () => actions.edit(turn) },
      icon("edit"),
      el("span", {}, "Edit"),
    );
    this.node = el(
      "article",
      { class: "turn user", "aria-label": "Your message" },
      el("div", { class: "bubble" }, turn.text),
      el("div", { class: "actions" }, edit, copy),
    );
  }

  update() {}
}
