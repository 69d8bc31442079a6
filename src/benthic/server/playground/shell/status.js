// How the server stands, asked for now and then, and at once when something failed.

import { fetchHealth, fetchModel } from "../api/client.js";

const CALM_MS = 5000;
const EAGER_MS = 1500;

/** What is shown for each state, and whether a request would be answered. */
export const STATES = {
  connecting: { label: "Connecting", kind: "wait", help: "" },
  ok: { label: "Ready", kind: "good", help: "" },
  key: { label: "Key needed", kind: "bad", help: "" },
  starting: { label: "Starting", kind: "wait", help: "The engine is loading the model." },
  restarting: { label: "Restarting", kind: "wait", help: "The engine is starting anew. What you send waits for it." },
  draining: { label: "Shutting down", kind: "bad", help: "The server finishes what runs and takes nothing new." },
  "needs weights": { label: "No weights", kind: "bad", help: "The engine waits for an update of its weights." },
  failed: { label: "Failed", kind: "bad", help: "The engine was given up. Its log has the reason." },
  away: { label: "Away", kind: "bad", help: "The server does not answer. This page tries again by itself." },
};

/** Events: `change` when the state or the model changed, `key` when the server wants one. */
export class Status extends EventTarget {
  state = "connecting";
  model = null;
  #timer = 0;

  start() {
    this.check();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.check();
    });
  }

  /** Asks now. */
  async check() {
    clearTimeout(this.#timer);
    let state = await fetchHealth();
    if (state === "ok" && this.model === null) state = await this.#learnModel();
    this.#set(state in STATES ? state : "away");
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.check(), this.state === "ok" ? CALM_MS : EAGER_MS);
  }

  /** A key was refused, or another one was entered. */
  forgetModel() {
    this.model = null;
  }

  async #learnModel() {
    try {
      this.model = await fetchModel();
      return "ok";
    } catch (failure) {
      if (failure.remedy !== "key") return "away";
      if (this.state !== "key") this.dispatchEvent(new Event("key"));
      return "key";
    }
  }

  #set(state) {
    if (state === "away") this.model = null; // another server may come up in its place
    if (state === this.state && state !== "ok") return;
    this.state = state;
    this.dispatchEvent(new Event("change"));
  }
}
