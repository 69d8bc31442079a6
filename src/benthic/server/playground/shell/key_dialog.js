// Asks for the server's key.

import { setApiKey } from "../api/client.js";
import { el, iconButton } from "./dom.js";
import { closeOnBackdrop } from "./keys.js";

/** @param {() => void} onKey called when a key was entered */
export function keyDialog(onKey) {
  const field = el("input", { id: "key", type: "password", autocomplete: "off", spellcheck: false, required: true });
  const remember = el("input", { id: "key-remember", type: "checkbox" });
  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "key-title" });
  const submit = () => {
    setApiKey(field.value.trim(), { remember: remember.checked });
    field.value = "";
    onKey();
  };
  dialog.append(
    el(
      "form",
      { method: "dialog", onSubmit: submit },
      el(
        "header",
        { class: "dialog-head" },
        el("h2", { id: "key-title" }, "This server asks for a key"),
        iconButton("close", "Close", () => dialog.close()),
      ),
      el(
        "p",
        { class: "note" },
        "Whoever started it set one, with --server.api_key or BENTHIC_API_KEY. It is sent to this server only.",
      ),
      el("div", { class: "setting" }, el("label", { htmlFor: "key" }, "Key"), field),
      el("div", { class: "check" }, remember, el("label", { htmlFor: "key-remember" }, "Remember it in this browser")),
      el(
        "footer",
        { class: "dialog-foot" },
        el("button", { type: "button", onClick: () => dialog.close() }, "Cancel"),
        el("button", { type: "submit", class: "primary" }, "Use this key"),
      ),
    ),
  );
  closeOnBackdrop(dialog);
  document.body.append(dialog);
  return {
    open() {
      if (!dialog.open) dialog.showModal();
      field.focus();
    },
  };
}
