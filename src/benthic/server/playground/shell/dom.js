// Elements without markup: text is always set as text, so nothing that a model writes becomes part of the page.

/**
 * A new element.
 * @param {string} tag
 * @param {Object} [props] `class`, `data-…`, `aria-…` and other attributes; `onX` adds a listener; other names that
 *   the element has are set as properties. `false`, `null` and `undefined` are left out.
 * @param {...(Node|string|null|false|Array)} children
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "class") node.className = value;
    else if (name in node && !name.includes("-") && name !== "list") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== false && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** A new SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(Boolean));
  return node;
}

// Outlines on a grid of 20 by 20.
const ICONS = {
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  check: "M4 10.5l4 4 8-9",
  retry: "M4.5 10a5.5 5.5 0 1 0 1.6-3.9L4 8.2M4 4v4.2h4.2",
  edit: "M4 16v-3L13 4l3 3-9 9z",
  code: "M7 6l-4 4 4 4M13 6l4 4-4 4",
  close: "M5 5l10 10M15 5L5 15",
  plus: "M10 4v12M4 10h12",
  sliders: "M3 6h7M14 6h3M3 14h3M10 14h7M12 6m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0M8 14m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0",
  sun:
    "M10 10m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0M10 2v2M10 16v2M2 10h2M16 10h2" +
    "M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M4.3 15.7l1.4-1.4M14.3 5.7l1.4-1.4",
  moon: "M16 11.5A6.5 6.5 0 1 1 8.5 4a5.2 5.2 0 0 0 7.5 7.5z",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M7 11.5h6",
  tool: "M12.5 4a4 4 0 0 0-3.7 5.5L4 14.3 5.7 16l4.8-4.8A4 4 0 0 0 15.8 6l-2.3 2.3-1.8-1.8L14 4.3A4 4 0 0 0 12.5 4z",
  down: "M10 4v12M5 11l5 5 5-5",
  chevron: "M7 5l5 5-5 5",
  alert: "M10 3l7.5 13h-15zM10 8v4M10 14.2h.01",
  key: "M7 13m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0M9.2 10.8L16 4M13 7l2.5 2.5",
  pause: "M7 5v10M13 5v10",
  play: "M7 5l8 5-8 5z",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
};

/** A decorative icon; the control that holds it carries the label. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" }, path);
}

/** A button that shows an icon only. */
export function iconButton(name, label, onClick, props = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onClick, ...props },
    icon(name),
  );
}

/** Copies text and says so on the button for a moment. */
export async function copyFrom(button, text) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copied = copyBySelection(text);
  }
  const before = [...button.childNodes];
  button.replaceChildren(icon(copied ? "check" : "alert"), el("span", {}, copied ? "Copied" : "Could not copy"));
  setTimeout(() => button.replaceChildren(...before), 1400);
}

// The clipboard's own interface exists on https and on loopback only.
function copyBySelection(text) {
  const area = el("textarea", { class: "offscreen", value: text, "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
