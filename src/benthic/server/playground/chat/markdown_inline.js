// Markdown inside of a line: code, emphasis, links. Makes nodes, never markup.

import { el } from "../shell/dom.js";

const INLINE = [
  {
    pattern: /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/,
    make: (match) => el("code", {}, match[2].replace(/^ (.+) $/, "$1")),
  },
  { pattern: /\*\*(?=\S)([\s\S]*?\S)\*\*/, make: (match) => el("strong", {}, renderInline(match[1])) },
  { pattern: /~~(?=\S)([\s\S]*?\S)~~/, make: (match) => el("del", {}, renderInline(match[1])) },
  { pattern: /\*(?=[^\s*])([^*]*[^\s*])\*(?!\*)/, make: (match) => el("em", {}, renderInline(match[1])) },
  { pattern: /(?<![\w_])_(?=[^\s_])([^_]*[^\s_])_(?![\w_])/, make: (match) => el("em", {}, renderInline(match[1])) },
  {
    pattern: /\[([^\]]+)\]\((https?:\/\/[^\s()]+(?:\([^\s()]*\))?[^\s()]*)\)/,
    make: (match) => link(match[2], renderInline(match[1])),
  },
  { pattern: /https?:\/\/[^\s<>()"']*[^\s<>()"'.,;:!?]/, make: (match) => link(match[0], match[0]) },
  { pattern: /\\([\\`*_{}[\]()#+\-.!~|>])/, make: (match) => match[1] },
];

/** The nodes of one run of text. */
export function renderInline(text) {
  const nodes = [];
  let rest = text;
  while (rest) {
    const found = firstMatch(rest);
    if (!found) break;
    if (found.match.index) nodes.push(rest.slice(0, found.match.index));
    nodes.push(found.rule.make(found.match));
    rest = rest.slice(found.match.index + found.match[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function firstMatch(text) {
  let best = null;
  for (const rule of INLINE) {
    const match = rule.pattern.exec(text);
    if (match && (best === null || match.index < best.match.index)) best = { rule, match };
  }
  return best;
}

function link(href, children) {
  return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
