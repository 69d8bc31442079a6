// An error, told kindly: what happened, and one thing to do about it.

import { el, icon } from "../shell/dom.js";

const REMEDY = { key: "Enter the key", settings: "Open settings", retry: "Try again", shorten: "Start a new chat" };

/**
 * @param {{title: string, message: string, remedy: string, retryAfter: number|null}} failure
 * @param {(remedy: string) => void} onRemedy
 */
export function failureBox(failure, onRemedy) {
  const children = [
    icon(failure.remedy === "key" ? "key" : "alert"),
    el("div", {}, el("strong", {}, failure.title), el("p", {}, failure.message)),
  ];
  const label = REMEDY[failure.remedy];
  if (label) {
    const button = el("button", { type: "button", onClick: () => onRemedy(failure.remedy) }, label);
    if (failure.retryAfter) countDown(button, label, Math.min(failure.retryAfter, 60));
    children.push(button);
  }
  return el("div", { class: "failure", role: "alert" }, children);
}

/** The server said when to come back; until then the button says how long. */
function countDown(button, label, seconds) {
  button.disabled = true;
  button.textContent = `${label} in ${Math.ceil(seconds)} s`;
  const timer = setInterval(() => {
    seconds -= 1;
    if (seconds > 0 && button.isConnected) {
      button.textContent = `${label} in ${Math.ceil(seconds)} s`;
      return;
    }
    clearInterval(timer);
    button.disabled = false;
    button.textContent = label;
  }, 1000);
}
