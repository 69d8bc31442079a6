// Keyboard shortcuts: one table, which is also what the help shows.

import { el, iconButton } from "./dom.js";

/** Keys of the composer and the tool forms, which handle them themselves. */
const TYPED = [
  { keys: ["Enter"], label: "Send" },
  { keys: ["Shift", "Enter"], label: "New line" },
  { keys: ["Esc"], label: "Stop the answer, or close what is open" },
  { keys: ["↑"], label: "Edit your last message (in an empty box)" },
  { keys: ["Ctrl", "Enter"], label: "Send a tool's result" },
];

/**
 * Binds single keys, which count only while nobody types.
 * @param {{key: string, label: string, run: () => void}[]} shortcuts
 * @returns {() => void} opens the help
 */
export function bindKeys(shortcuts) {
  const help = helpDialog(shortcuts);
  const all = [...shortcuts, { key: "?", label: "This list", run: () => help.showModal() }];
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const found = all.find((shortcut) => shortcut.key === event.key.toLowerCase());
    if (!found) return;
    event.preventDefault();
    found.run();
  });
  return () => help.showModal();
}

function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}

function helpDialog(shortcuts) {
  const rows = [
    ...TYPED,
    ...shortcuts.map(({ key, label }) => ({ keys: [key], label })),
    { keys: ["?"], label: "This list" },
  ];
  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "keys-title" });
  dialog.append(
    el(
      "header",
      { class: "dialog-head" },
      el("h2", { id: "keys-title" }, "Keyboard"),
      iconButton("close", "Close", () => dialog.close()),
    ),
    el(
      "dl",
      { class: "keys" },
      rows.map(({ keys, label }) =>
        el(
          "div",
          {},
          el("dt", {}, label),
          el(
            "dd",
            {},
            keys.map((key) => el("kbd", {}, key)),
          ),
        ),
      ),
    ),
  );
  closeOnBackdrop(dialog);
  document.body.append(dialog);
  return dialog;
}

/** A click beside a dialog closes it. */
export function closeOnBackdrop(dialog) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
