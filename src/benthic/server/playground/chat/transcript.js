// All turns on the page, in order. Redraws at most once a frame, and follows the end unless somebody scrolled away.

import { el, icon } from "../shell/dom.js";
import { AnswerView } from "./answer.js";
import { QuestionView } from "./question.js";
import { welcome } from "./welcome.js";

const NEAR_END_PX = 60;

export class Transcript {
  /**
   * @param {import("./conversation.js").Conversation} conversation
   * @param {object} actions as AnswerView and QuestionView take them, and `example` for the welcome
   */
  constructor(conversation, actions) {
    this.#conversation = conversation;
    this.#actions = actions;
    this.#list = el("div", { class: "turns" });
    this.#welcome = welcome(actions.example);
    this.#jump = el(
      "button",
      { type: "button", class: "jump", hidden: true, onClick: () => this.toEnd() },
      icon("down"),
      "Latest",
    );
    this.#scroller = el(
      "div",
      { class: "scroller", tabIndex: 0, role: "region", "aria-label": "Conversation" },
      el("div", { class: "column" }, this.#welcome, this.#list),
    );
    this.node = el("div", { class: "transcript" }, this.#scroller, this.#jump);
    this.#scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    conversation.addEventListener("turns", () => this.#sync());
    conversation.addEventListener("turn", (event) => this.#schedule(event.detail));
    new ResizeObserver(() => this.#follow()).observe(this.#list);
    setInterval(() => this.#drawWaiting(), 1000);
    this.#sync();
  }

  #conversation;
  #actions;
  #list;
  #welcome;
  #jump;
  #scroller;
  #views = new Map();
  #dirty = new Set();
  #follows = true;

  toEnd() {
    this.#follows = true;
    this.#follow();
  }

  /** Puts the cursor into the form of the first call that waits; false when none does. */
  focusCall() {
    return [...this.#views.values()].some((view) => view.focusCall?.());
  }

  #sync() {
    const { turns } = this.#conversation;
    const shown = turns.filter((turn) => turn.role !== "tool");
    const ids = new Set(shown.map((turn) => turn.id));
    for (const [id, view] of this.#views) {
      if (ids.has(id)) continue;
      view.node.remove();
      this.#views.delete(id);
    }
    const results = this.#results();
    for (const turn of shown) {
      if (!this.#views.has(turn.id)) this.#add(turn);
      this.#views.get(turn.id).update(results);
    }
    this.#welcome.hidden = shown.length > 0;
  }

  #add(turn) {
    const View = turn.role === "user" ? QuestionView : AnswerView;
    const view = new View(turn, this.#actions);
    this.#views.set(turn.id, view);
    this.#list.append(view.node);
  }

  #results() {
    return new Map(
      this.#conversation.turns.filter((turn) => turn.role === "tool").map((turn) => [turn.callId, turn.text]),
    );
  }

  #schedule(turn) {
    if (!this.#dirty.size) requestAnimationFrame(() => this.#draw());
    this.#dirty.add(turn.id);
  }

  #draw() {
    const results = this.#results();
    for (const id of this.#dirty) this.#views.get(id)?.update(results);
    this.#dirty.clear();
  }

  /** While nothing comes, what the last turn says of its waiting still changes. */
  #drawWaiting() {
    const last = this.#conversation.turns.at(-1);
    if (this.#conversation.isBusy && last?.phase === "waiting") this.#schedule(last);
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    this.#jump.hidden = this.#follows;
  }

  #follow() {
    if (this.#follows) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    else this.#noteScroll();
  }
}
