// Markdown as models write it, as nodes. Text is cut into blocks first, so that a growing answer redraws its last one.

import { copyFrom, el, icon } from "../shell/dom.js";
import { renderInline } from "./markdown_inline.js";

/**
 * Shows text in `container`, keeping what is already shown of it.
 * @param {HTMLElement} container whose children are this function's alone
 * @param {string} text
 */
export function showMarkdown(container, text) {
  const blocks = splitBlocks(text);
  blocks.forEach((block, index) => {
    const shown = container.children[index];
    const key = `${block.kind}:${block.source}`;
    if (shown?.blockKey === key) return;
    const node = BLOCKS[block.kind](block);
    node.blockKey = key;
    if (shown) shown.replaceWith(node);
    else container.append(node);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Blocks of a text in order, as {kind, source, lines, …}. An unfinished block at the end is one already. */
export function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const end = blockEnd(lines, at);
    blocks.push({ ...end, source: lines.slice(at, end.next).join("\n"), lines: lines.slice(at, end.next) });
    at = end.next;
  }
  return blocks;
}

function blockEnd(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) {
    const closing = lines.findIndex(
      (line, index) => index > at && line.trim().startsWith(fence[1]) && !line.trim().slice(fence[1].length).trim(),
    );
    return { kind: "code", language: fence[2], isClosed: closing >= 0, next: closing < 0 ? lines.length : closing + 1 };
  }
  if (HEADING.test(lines[at])) return { kind: "heading", next: at + 1 };
  if (RULE.test(lines[at])) return { kind: "rule", next: at + 1 };
  if (lines[at].includes("|") && TABLE_LINE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
    return { kind: "table", next: runEnd(lines, at + 2, (line) => line.includes("|")) };
  }
  if (/^\s*>/.test(lines[at])) return { kind: "quote", next: runEnd(lines, at, (line) => /^\s*>/.test(line)) };
  if (ITEM.test(lines[at])) return { kind: "list", next: listEnd(lines, at) };
  return { kind: "paragraph", next: runEnd(lines, at + 1, (line) => line.trim() && !startsBlock(line)) };
}

function runEnd(lines, at, belongs) {
  let end = at;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

/** A list goes on over empty lines if another item or an indented line follows. */
function listEnd(lines, at) {
  let end = at + 1;
  while (end < lines.length) {
    const next = lines[end].trim() ? end : end + 1;
    if (next >= lines.length || !lines[next].trim()) break;
    if (!ITEM.test(lines[next]) && !/^\s{2,}/.test(lines[next]) && (next !== end || startsBlock(lines[next]))) break;
    end = next + 1;
  }
  return end;
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^\s*>/.test(line);
}

const BLOCKS = {
  paragraph: ({ source }) => el("p", {}, renderInline(source)),
  rule: () => el("hr"),
  quote: ({ lines }) => nested("blockquote", lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n")),
  heading({ source }) {
    const [, marks, text] = HEADING.exec(source);
    return el(`h${Math.min(marks.length + 2, 6)}`, {}, renderInline(text));
  },
  code({ lines, language, isClosed }) {
    return codeBlock(lines.slice(1, isClosed ? -1 : undefined).join("\n"), language);
  },
  list: ({ lines }) => list(lines),
  table: ({ lines }) => table(lines),
};

/** A block of code with its language and a button that copies it. */
export function codeBlock(text, language) {
  const copy = el(
    "button",
    { type: "button", class: "quiet", onClick: () => copyFrom(copy, text) },
    icon("copy"),
    el("span", {}, "Copy"),
  );
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copy),
    el("pre", { tabIndex: 0 }, el("code", {}, text)),
  );
}

function nested(tag, text) {
  const node = el(tag);
  showMarkdown(node, text);
  return node;
}

function list(lines) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line.slice(Math.min(indent.length + 2, line.length - line.trimStart().length)));
  }
  const isOrdered = /\d/.test(marker);
  const node = el(
    isOrdered ? "ol" : "ul",
    isOrdered && Number.parseInt(marker, 10) !== 1 ? { start: Number.parseInt(marker, 10) } : {},
  );
  node.append(
    ...items.map((item) => (item.length === 1 ? el("li", {}, renderInline(item[0])) : nested("li", item.join("\n")))),
  );
  return node;
}

function table(lines) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||(?<!\\)\|$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim().replaceAll("\\|", "|"));
  const sides = cells(lines[1]).map((rule) => (/^:-+:$/.test(rule) ? "center" : /-:$/.test(rule) ? "end" : "start"));
  const row = (tag, line) =>
    el(
      "tr",
      {},
      cells(line).map((cell, index) => el(tag, { class: `to-${sides[index] ?? "start"}` }, renderInline(cell))),
    );
  return el(
    "div",
    { class: "table", tabIndex: 0 },
    el(
      "table",
      {},
      el("thead", {}, row("th", lines[0])),
      el(
        "tbody",
        {},
        lines.slice(2).map((line) => row("td", line)),
      ),
    ),
  );
}
