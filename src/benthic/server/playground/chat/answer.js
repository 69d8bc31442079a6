// One reply of the model on the page: reasoning folded, answer, calls, what went wrong, and the line under it.

import { copyFrom, el, icon } from "../shell/dom.js";
import { count, duration } from "../shell/numbers.js";
import { codeBlock, showMarkdown } from "./markdown.js";
import { failureBox } from "./failure_box.js";
import { reportBody, summaryParts } from "./report.js";
import { ToolCallCard } from "./tool_call.js";
import { FINAL, jsonState, wantsResults } from "./turn.js";

const PHASE = {
  waiting: "Waiting for the first token",
  answering: "Answering",
  calling: "Writing a tool call",
  stopped: "Stopped",
};

export class AnswerView {
  /**
   * @param {object} turn
   * @param {{retry: Function, copyRequest: Function, answerCall: Function, remedy: Function}} actions
   */
  constructor(turn, actions) {
    this.turn = turn;
    this.#actions = actions;
    this.#peek = el("span", { class: "peek" });
    this.#thinkingLabel = el("span", { class: "thinking-label" });
    this.#thinkingText = el("div", { class: "thinking-text" });
    this.#thinking = el(
      "details",
      { class: "thinking", hidden: true },
      el("summary", {}, icon("chevron"), this.#thinkingLabel, this.#peek),
      this.#thinkingText,
    );
    this.#answer = el("div", { class: "markdown" });
    this.#calls = el("div", { class: "calls" });
    this.#notes = el("div", { class: "notes" });
    this.#foot = el("span", { class: "foot-text" });
    this.#toggle = el(
      "button",
      {
        type: "button",
        class: "foot-toggle quiet",
        disabled: true,
        "aria-expanded": "false",
        onClick: () => this.#toggleReport(),
      },
      this.#foot,
    );
    this.#report = el("div", { class: "report", hidden: true });
    this.#buttons = this.#actionButtons();
    this.node = el(
      "article",
      { class: "turn assistant", "aria-label": "Answer" },
      this.#thinking,
      this.#answer,
      this.#calls,
      this.#notes,
      el("footer", { class: "foot" }, this.#toggle, this.#buttons),
      this.#report,
    );
  }

  #actions;
  #peek;
  #thinkingLabel;
  #thinkingText;
  #thinking;
  #answer;
  #calls;
  #notes;
  #foot;
  #toggle;
  #report;
  #buttons;
  #cards = [];
  #finalShown = false;

  /** Shows the turn as it is now. `results` maps call ids to the texts that answered them. */
  update(results) {
    const isFinal = FINAL.has(this.turn.phase);
    this.#showCalls(results, isFinal);
    if (this.#finalShown) return; // only a call's result can still come
    this.#finalShown = isFinal;
    this.node.dataset.phase = this.turn.phase;
    this.#showThinking(isFinal);
    this.#showAnswer(isFinal);
    this.#showFoot(isFinal);
    if (isFinal) this.#notes.replaceChildren(...this.#noteList());
  }

  /** Puts the cursor where a tool's result is wanted. */
  focusCall() {
    const open = this.#cards.find((card) => card.node.dataset.state === "open");
    open?.focus();
    return open !== undefined;
  }

  #showThinking(isFinal) {
    const { turn } = this;
    if (!turn.reasoning) return;
    this.#thinking.hidden = false;
    if (this.#thinkingText.textContent.length !== turn.reasoning.length)
      this.#thinkingText.textContent = turn.reasoning;
    const isOver = isFinal || turn.at.thought !== null;
    this.#thinkingLabel.textContent = isOver ? thoughtLabel(turn) : "Thinking";
    this.#peek.textContent = isOver ? "" : turn.reasoning.slice(-160).replaceAll("\n", " ");
  }

  #showAnswer(isFinal) {
    const { turn } = this;
    const json = jsonState(turn);
    if (json?.isValid) this.#answer.replaceChildren(codeBlock(json.text, "json"));
    else if (turn.format !== "text" && turn.content) {
      this.#answer.classList.add("plain");
      this.#answer.textContent = turn.content;
    } else showMarkdown(this.#answer, turn.content);
    if (json?.isValid) this.#answer.classList.remove("plain");
    this.#answer.classList.toggle("growing", !isFinal && turn.phase === "answering");
  }

  #showCalls(results, isFinal) {
    const { turn } = this;
    turn.calls.forEach((call, index) => {
      this.#cards[index] ??= this.#newCard(call);
      const result = results.get(call.id);
      const state = result !== undefined ? "answered" : wantsResults(turn) ? "open" : isFinal ? "void" : "writing";
      this.#cards[index].update(call, state, result);
    });
  }

  #newCard(call) {
    const card = new ToolCallCard({ onResult: (text) => this.#actions.answerCall(call, text) });
    this.#calls.append(card.node);
    return card;
  }

  #showFoot(isFinal) {
    const { turn } = this;
    this.#foot.textContent = footParts(turn).join("  ·  ");
    const hasReport = isFinal && turn.report !== null && turn.usage !== null;
    this.#toggle.disabled = !hasReport;
    this.#toggle.title = hasReport ? "Cache report" : "";
    this.#buttons.hidden = !isFinal;
    this.#buttons.firstElementChild.hidden = !turn.content;
  }

  #toggleReport() {
    const isOpen = this.#report.hidden;
    if (isOpen) this.#report.replaceChildren(...reportBody(this.turn));
    this.#report.hidden = !isOpen;
    this.#toggle.setAttribute("aria-expanded", String(isOpen));
  }

  #noteList() {
    const { turn } = this;
    const notes = turn.callErrors.map(({ name, message }) =>
      note("warning", `The call of ${name || "a tool"} cannot be carried out: ${message}`),
    );
    const json = jsonState(turn);
    if (json && !json.isValid)
      notes.push(
        note(
          "warning",
          turn.finish === "length" ? "Cut off before the JSON was complete." : "This answer is not JSON.",
        ),
      );
    if (turn.finish === "length") notes.push(note("info", lengthNote(turn)));
    const isEmpty = !turn.content && !turn.calls.length && !turn.callErrors.length;
    if (turn.phase === "done" && turn.finish !== "length" && isEmpty)
      notes.push(note("info", "The model ended its answer without a word."));
    if (turn.failure) notes.push(failureBox(turn.failure, this.#actions.remedy));
    return notes;
  }

  #actionButtons() {
    const copy = el(
      "button",
      { type: "button", class: "quiet", onClick: () => copyFrom(copy, this.turn.content) },
      icon("copy"),
      el("span", {}, "Copy"),
    );
    const request = el(
      "button",
      {
        type: "button",
        class: "quiet only-wide",
        title: "Copy the request as a curl command",
        onClick: () => this.#actions.copyRequest(request, this.turn),
      },
      icon("code"),
      el("span", {}, "Request"),
    );
    const retry = el(
      "button",
      { type: "button", class: "quiet", onClick: () => this.#actions.retry(this.turn) },
      icon("retry"),
      el("span", {}, "Again"),
    );
    return el("div", { class: "actions", hidden: true }, copy, retry, request);
  }
}

/** The phase, unless the line above says it already, and the speed. */
function footParts(turn) {
  const parts = summaryParts(turn);
  if (PHASE[turn.phase]) parts.unshift(PHASE[turn.phase]);
  const waited = Math.floor((performance.now() - turn.at.sent) / 1000);
  if (turn.phase === "waiting" && waited >= 2) parts.push(`${waited} s`);
  return parts.length ? parts : ["No answer"];
}

function thoughtLabel(turn) {
  const tokens = turn.usage?.completion_tokens_details?.reasoning_tokens;
  const seconds = ((turn.at.thought ?? turn.at.last) - turn.at.first) / 1000;
  return `Thought for ${duration(seconds)}${tokens ? `, ${count(tokens, "token")}` : ""}`;
}

function lengthNote(turn) {
  if (!turn.content && turn.reasoning) {
    const reason = "The limit was reached while the model was thinking, so there is no answer.";
    return `${reason} Raise the longest answer, or set a thinking budget.`;
  }
  return "Cut off at the limit of tokens.";
}

function note(kind, text) {
  return el("p", { class: `note-line ${kind}` }, text);
}
