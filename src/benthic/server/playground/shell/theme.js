// Light, dark, or as the system has it.

import { load, save } from "./store.js";

const ORDER = ["system", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

/** "system", "light" or "dark". */
export function chosenTheme() {
  const stored = load("theme", "system");
  return ORDER.includes(stored) ? stored : "system";
}

/** Whether the page is dark now. */
export function isDark() {
  const chosen = chosenTheme();
  return chosen === "system" ? system.matches : chosen === "dark";
}

/** Turns light into dark and back; where the system's theme is the one wanted, it is followed again. */
export function toggleTheme() {
  const wanted = isDark() ? "light" : "dark";
  const follows = system.matches === (wanted === "dark");
  save("theme", follows ? "system" : wanted);
  applyTheme();
}

export function applyTheme() {
  const chosen = chosenTheme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  for (const listener of listeners) listener(isDark());
}

/** Calls back with whether the page is dark, now and at each change. */
export function onTheme(listener) {
  listeners.push(listener);
  listener(isDark());
}

const listeners = [];
system.addEventListener("change", applyTheme);
