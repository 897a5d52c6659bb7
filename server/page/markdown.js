// What models write most of Markdown, as elements: never as HTML text, so that nothing in it runs.

import { copy, el } from "./dom.js";

const inlineRules = [
  [/`([^`\n]+)`/, (m) => el("code", { textContent: m[1] })],
  [/\*\*(?=\S)(.+?\S?)\*\*/, (m) => el("strong", {}, ...inline(m[1]))],
  [/(?<![\w*])\*(?=[^\s*])([^*\n]*[^\s*])\*(?!\w)/, (m) => el("em", {}, ...inline(m[1]))],
  [/(?<!\w)_(?=[^\s_])([^_\n]*[^\s_])_(?!\w)/, (m) => el("em", {}, ...inline(m[1]))],
  [/\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/, (m) => el("a", { href: m[2], target: "_blank", rel: "noopener noreferrer",
    textContent: m[1] })],
];

function firstMatch(text) {
  let best = null;
  for (const [pattern, make] of inlineRules) {
    const match = pattern.exec(text);
    if (match && (!best || match.index < best.match.index)) best = { match, make };
  }
  return best;
}

function inline(text) {
  const nodes = [];
  for (let found; (found = firstMatch(text));) {
    const { match, make } = found;
    nodes.push(text.slice(0, match.index), make(match));
    text = text.slice(match.index + match[0].length);
  }
  return [...nodes, text];
}

function copyButton(text) {
  const button = el("button", { type: "button", className: "plain copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

// Each taker looks at lines[at]; it returns [node, next] or null.
function takeCode(lines, at) {
  const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(lines[at]);
  if (!fence) return null;
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end++;
  const text = lines.slice(at + 1, end).join("\n");
  const head = el("div", { className: "code-head" }, el("span", { textContent: fence[2] || "text" }), copyButton(text));
  return [el("div", { className: "code" }, head, el("pre", {}, el("code", { textContent: text }))), end + 1];
}

function takeHeading(lines, at) {
  const match = /^(#{1,6})\s+(.*?)\s*#*$/.exec(lines[at]);
  return match && [el(`h${Math.min(6, match[1].length + 2)}`, {}, ...inline(match[2])), at + 1];
}

function takeRule(lines, at) {
  return /^\s*([-*_])(\s*\1){2,}\s*$/.test(lines[at]) ? [el("hr"), at + 1] : null;
}

function takeQuote(lines, at) {
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end++;
  if (end === at) return null;
  return [el("blockquote", {}, ...markdown(lines.slice(at, end).map((l) => l.replace(/^\s*> ?/, "")).join("\n"))), end];
}

const itemPattern = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

// An item is its line and what is indented under it.
function takeList(lines, at) {
  const first = itemPattern.exec(lines[at]);
  if (!first) return null;
  const ordered = /\d/.test(first[2]);
  const list = el(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(first[2], 10);
  let end = at;
  while (end < lines.length) {
    const item = itemPattern.exec(lines[end]);
    if (!item || item[1].length > first[1].length || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    for (end++; end < lines.length && !isNextItem(lines, end, first[1].length); end++) {
      if (!lines[end].trim() && !/^\s+\S/.test(lines[end + 1] ?? "")) break;
      if (lines[end].trim() && !/^\s/.test(lines[end])) break;
      inner.push(lines[end].replace(/^\s{1,4}/, ""));
    }
    list.append(el("li", {}, ...tight(markdown(inner.join("\n")))));
    while (end < lines.length && !lines[end].trim() && itemPattern.test(lines[end + 1] ?? "")) end++;
  }
  return [list, end];
}

function isNextItem(lines, at, indent) {
  const item = itemPattern.exec(lines[at]);
  return item && item[1].length <= indent;
}

// The only paragraph of an item needs no element of its own.
function tight(nodes) {
  if (nodes[0]?.tagName !== "P") return nodes;
  return [...nodes[0].childNodes, ...nodes.slice(1)];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function takeTable(lines, at) {
  if (!lines[at].includes("|") || !/^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/.test(lines[at + 1] ?? "")) return null;
  const line = (text, tag) => el("tr", {}, ...cells(text).map((c) => el(tag, {}, ...inline(c))));
  const body = el("tbody");
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end++) body.append(line(lines[end], "td"));
  return [el("div", { className: "table" }, el("table", {}, el("thead", {}, line(lines[at], "th")), body)), end];
}

const takers = [takeCode, takeHeading, takeRule, takeQuote, takeList, takeTable];

function takeParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !takers.some((take) => take(lines, end))) end++;
  const parts = [];
  for (const line of lines.slice(at, end)) {
    if (parts.length) parts.push(el("br"));
    parts.push(...inline(line.trim()));
  }
  return [el("p", {}, ...parts), end];
}

// The nodes of a text.
export function markdown(text) {
  const lines = text.split("\n");
  const nodes = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    let taken = null;
    for (const take of takers) if ((taken = take(lines, at))) break;
    const [node, next] = taken ?? takeParagraph(lines, at);
    nodes.push(node);
    at = next;
  }
  return nodes;
}
