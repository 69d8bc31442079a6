// The controls of the panel: a slider with a number beside it, a plain number, a choice among a few.

import { el } from "../shell/dom.js";

/**
 * A row for one number; empty is `null`, the server's default.
 * @param {object} field of NUMBERS
 * @param {() => number|null} read
 * @param {(value: number|null) => void} write
 * @returns {{node: HTMLElement, refresh: () => void}}
 */
export function numberRow(field, read, write) {
  const id = `set-${field.name}`;
  const isWhole = field.isPlain || field.step === 1;
  const number = el("input", {
    id,
    type: "number",
    inputMode: isWhole ? "numeric" : "decimal",
    placeholder: "default",
    "aria-describedby": `${id}-hint`,
  });
  Object.assign(number, {
    min: field.min,
    step: isWhole ? 1 : "any",
    ...(field.max === undefined || field.isOpen ? {} : { max: field.max }),
  });
  const slider = field.isPlain
    ? null
    : el("input", {
        type: "range",
        min: field.min,
        max: field.max,
        step: field.step,
        "aria-label": field.label,
        tabIndex: -1,
      });
  const row = el(
    "div",
    { class: "setting number" },
    el("label", { htmlFor: id }, field.label),
    number,
    slider,
    el("p", { class: "hint", id: `${id}-hint` }, field.hint),
  );

  const refresh = () => {
    const value = read();
    if (document.activeElement !== number) number.value = value ?? "";
    if (slider) slider.value = value ?? field.neutral;
    row.classList.toggle("is-set", value !== null);
  };
  number.addEventListener("input", () => {
    const isBad = number.validity.badInput || (number.value !== "" && !number.validity.valid);
    number.setAttribute("aria-invalid", String(isBad));
    if (!isBad) write(number.value === "" ? null : number.valueAsNumber);
    refresh();
  });
  number.addEventListener("blur", () => {
    number.setAttribute("aria-invalid", "false");
    number.value = read() ?? "";
  });
  slider?.addEventListener("input", () => {
    write(slider.valueAsNumber);
    refresh();
  });
  refresh();
  return { node: row, refresh };
}

/**
 * One of a few, all of them visible.
 * @param {string} label
 * @param {[string, string][]} options value and words
 */
export function segments(name, label, options, read, write) {
  const inputs = options.map(([value]) =>
    el("input", { type: "radio", name, value, id: `${name}-${value}`, onChange: () => write(value) }),
  );
  const node = el(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": label },
    options.map(([value, words], index) => [inputs[index], el("label", { htmlFor: `${name}-${value}` }, words)]),
  );
  const refresh = () => {
    for (const input of inputs) input.checked = input.value === read();
  };
  refresh();
  return { node, refresh };
}

/** A text of several lines with a sentence under it that says what is wrong with it. */
export function textRow({ id, label, rows, placeholder = "", isCode = false, problem = null }, read, write) {
  const area = el("textarea", { id, rows, placeholder, spellcheck: !isCode, class: isCode ? "code-input" : "" });
  const message = problem && el("p", { class: "problem", "aria-live": "polite", id: `${id}-problem` });
  if (message) area.setAttribute("aria-describedby", `${id}-problem`);
  const refresh = () => {
    if (area.value !== read()) area.value = read();
    if (!message) return;
    const wrong = problem(read());
    message.textContent = wrong ?? "";
    area.setAttribute("aria-invalid", String(wrong !== null));
  };
  area.addEventListener("input", () => {
    write(area.value);
    refresh();
  });
  if (isCode) area.addEventListener("keydown", indentOnTab);
  refresh();
  return { node: el("div", { class: "setting" }, el("label", { htmlFor: id }, label), area, message), refresh };
}

/** Tab indents where there is code before the cursor; elsewhere it moves on, as it must for people without a mouse. */
function indentOnTab(event) {
  const area = event.target;
  const before = area.value.slice(0, area.selectionStart).split("\n").at(-1);
  if (event.key !== "Tab" || event.shiftKey || before.trim() || !area.value.trim() || area.selectionStart === 0) return;
  event.preventDefault();
  area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input"));
}

/** A select with a label. `options` gives [value, words] at each refresh. */
export function selectRow({ id, label, options }, read, write) {
  const select = el("select", { id, onChange: () => write(select.value) });
  const refresh = () => {
    select.replaceChildren(...options().map(([value, words]) => el("option", { value }, words)));
    select.value = read();
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  };
  refresh();
  return { node: el("div", { class: "setting inline" }, el("label", { htmlFor: id }, label), select), refresh };
}
