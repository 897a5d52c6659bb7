// The card beside a token: how likely it and the others were.

import { $, el } from "./dom.js";
import { isText, percent, probability, visible } from "./tokens.js";

let pinned = false;
let anchor = null;

export const isPinned = () => pinned;

export function hideCard() {
  pinned = false;
  $("card").hidden = true;
  anchor?.classList.remove("shown");
  anchor = null;
}

function bar(p) {
  const fill = el("i");
  fill.style.width = `${Math.max(1, p * 100)}%`;
  return el("span", { className: "bar", "aria-hidden": "true" }, fill);
}

function row(other, chosen, choose) {
  const p = probability(other);
  const can = choose && !chosen && isText(other.text);
  const node = el(can ? "button" : "div", { className: `other${chosen ? " chosen" : ""}` });
  if (can) {
    node.type = "button";
    node.title = "Take this one, and go on from there";
    node.addEventListener("click", () => choose(other));
  }
  node.append(el("code", { textContent: visible(other.text) }), bar(p), el("span", { textContent: percent(p) }));
  return node;
}

function partOf(token, choose) {
  const part = el("div", { className: "part" });
  if (token.logprob === null) {
    part.append(el("code", { textContent: visible(token.text) }), " is the first: nothing to judge it by");
    return part;
  }
  const others = token.top.some((t) => t.text === token.text) ? token.top
    : [...token.top, { text: token.text, logprob: token.logprob }];
  part.append(...others.map((other) => row(other, other.text === token.text, choose)));
  return part;
}

// Below the token, or above it where there is no room.
function place(span) {
  const card = $("card");
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const left = Math.min(at.left, window.innerWidth - card.offsetWidth - 8);
  const below = at.bottom + 6;
  const fits = below + card.offsetHeight < window.innerHeight;
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${fits ? below : Math.max(8, at.top - card.offsetHeight - 6)}px`;
}

// `choose` is called with the alternative that was picked; null: none can be.
export function showCard(span, piece, choose) {
  const card = $("card");
  hideCard();
  anchor = span;
  span.classList.add("shown");
  card.replaceChildren(...piece.tokens.map((token) => partOf(token, choose)));
  card.hidden = false;
  place(span);
}

// It stays until something else is done.
export function pinCard(focus) {
  if ($("card").hidden) return;
  pinned = true;
  if (focus) $("card").querySelector("button")?.focus();
}

export function startCard() {
  document.addEventListener("pointerdown", (event) => {
    if (pinned && !$("card").contains(event.target)) hideCard();
  });
  $("card").addEventListener("keydown", (event) => {
    const buttons = [...$("card").querySelectorAll("button")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length]?.focus();
  });
  for (const what of ["scroll", "resize"]) window.addEventListener(what, hideCard, true);
}

// Escape: back to the token that the card belongs to. False when there was no card.
export function leaveCard() {
  if ($("card").hidden) return false;
  const back = anchor;
  const inside = $("card").contains(document.activeElement);
  hideCard();
  if (inside) {
    back?.focus();
    hideCard();
  }
  return true;
}
