// The conversation: its turns, and the one request that may run. Views are told of every change.

import { streamChat } from "../api/client.js";
import { Failure } from "../api/failure.js";
import { load, save } from "../shell/store.js";
import { toBody } from "./request.js";
import { FINAL, applyChunk, assistantTurn, toolTurn, userTurn, wantsResults } from "./turn.js";

const MAX_STORED_CHARACTERS = 2_000_000;

/**
 * Events: `turns` when turns were added or removed, `turn` (detail: the turn) when one changed, `busy` when a request
 * began or ended.
 */
export class Conversation extends EventTarget {
  #abort = null;
  #bodies = new WeakMap();

  /** @param {{settings: () => object, model: () => string|undefined, stream?: typeof streamChat}} sources */
  constructor({ settings, model, stream = streamChat }) {
    super();
    this.turns = restoreTurns(load("turns", []));
    this.#settings = settings;
    this.#model = model;
    this.#stream = stream;
  }

  #settings;
  #model;
  #stream;

  get isBusy() {
    return this.#abort !== null;
  }

  /** Calls of the last reply that wait for results. */
  get openCalls() {
    const index = this.turns.findLastIndex((turn) => turn.role === "assistant");
    if (index < 0 || !wantsResults(this.turns[index])) return [];
    const answered = new Set(this.turns.slice(index).map((turn) => turn.callId));
    return this.turns[index].calls.filter((call) => !answered.has(call.id));
  }

  /** Adds a message and asks for the reply. */
  async send(text) {
    this.turns.push(userTurn(text));
    await this.#answer();
  }

  /** Adds the result of a call; when no call is open any more, the model goes on. */
  async answerCall(call, text) {
    this.turns.push(toolTurn(call, text));
    this.#tell("turns");
    if (this.openCalls.length === 0) await this.#answer();
    else this.#store();
  }

  /** Asks again for a reply and for nothing that came after it. */
  async retry(turn) {
    this.#dropFrom(turn);
    await this.#answer();
  }

  /** Takes a message and all that follows out, and returns its text. */
  take(turn) {
    this.#dropFrom(turn);
    this.#tell("turns");
    this.#store();
    return turn.text;
  }

  /** Ends the running request, here and on the server; what came stays. */
  stop() {
    this.#abort?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.#tell("turns");
    this.#store();
  }

  /** The body that led to a reply; after a reload, with the settings of now. */
  bodyOf(turn) {
    return this.#bodies.get(turn) ?? this.#newBody(turn);
  }

  #newBody(turn) {
    return toBody(this.#model(), this.#settings(), this.turns.slice(0, this.turns.indexOf(turn)));
  }

  #dropFrom(turn) {
    this.stop();
    this.turns = this.turns.slice(0, this.turns.indexOf(turn));
  }

  async #answer() {
    const turn = { ...assistantTurn(performance.now()), format: this.#settings().format };
    const abort = new AbortController();
    this.#abort = abort;
    this.turns.push(turn);
    this.#tell("turns");
    this.#tell("busy");
    try {
      const body = this.#newBody(turn);
      this.#bodies.set(turn, body);
      for await (const chunk of this.#stream(body, abort.signal)) {
        applyChunk(turn, chunk, performance.now());
        this.#tell("turn", turn);
      }
      turn.phase = "done";
    } catch (error) {
      if (abort.signal.aborted) turn.phase = "stopped";
      else fail(turn, error);
    }
    this.#end(turn, abort);
  }

  /** Another request may have taken this one's place, or its turn may have been dropped: then only the views learn. */
  #end(turn, abort) {
    if (this.#abort === abort) this.#abort = null;
    this.#tell("turn", turn);
    this.#tell("turns");
    this.#tell("busy");
    this.#store();
  }

  #tell(kind, detail = null) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }

  #store() {
    const fits = JSON.stringify(this.turns).length <= MAX_STORED_CHARACTERS;
    save("turns", fits ? this.turns : undefined);
  }
}

function fail(turn, error) {
  turn.phase = "failed";
  turn.failure = (error instanceof Failure ? error : unexpected(error)).toJSON();
}

function unexpected(error) {
  const isSchema = error instanceof SyntaxError;
  return new Failure({
    title: isSchema ? "A schema in the settings is not JSON" : "This page made a mistake",
    message: error.message,
    remedy: isSchema ? "settings" : "retry",
  });
}

const hasTexts = (turn, names) => names.every((name) => typeof turn[name] === "string");

/** Whether this version of the page can show it: another one may have stored it. */
function isTurn(turn) {
  if (turn?.role === "user") return hasTexts(turn, ["id", "text"]);
  if (turn?.role === "tool") return hasTexts(turn, ["id", "text", "callId"]);
  const isReply = turn?.role === "assistant" && hasTexts(turn, ["id", "phase", "reasoning", "content"]);
  return isReply && Array.isArray(turn.calls) && Array.isArray(turn.callErrors) && typeof turn.at?.sent === "number";
}

/** Turns as they were stored. A reply that was running when the page went away has been stopped by that. */
function restoreTurns(stored) {
  if (!Array.isArray(stored) || !stored.every(isTurn)) return [];
  return stored.map((turn) =>
    turn.role === "assistant" && !FINAL.has(turn.phase) ? { ...turn, phase: "stopped" } : turn,
  );
}
