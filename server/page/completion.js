// The completion mode: a text goes on, token by token, and each shows how likely it was.

import { Problem, stream } from "./api.js";
import { hideCard, isPinned, pinCard, showCard } from "./card.js";
import { $, clear, el, recall, session, store, throttle } from "./dom.js";
import { Meter } from "./meter.js";
import { sampling } from "./settings.js";
import { Pieces, isText, percent, probability, visible } from "./tokens.js";

const TOP = 5; // alternatives asked for, where the server gives so many

let pieces = []; // {text, tokens, echo}
let running = null;
let server;

// ---- drawing ----

function spanOf(piece) {
  const chances = piece.tokens.map(probability).filter((p) => p !== null);
  const p = chances.length ? Math.min(...chances) : null;
  const span = el("span", { className: "token", tabIndex: -1 });
  span.textContent = piece.text || visible(piece.tokens[0].text);
  if (!piece.text) span.classList.add("end");
  if (piece.echo) span.classList.add("echo");
  span.style.setProperty("--doubt", p === null ? 0 : (1 - p).toFixed(3));
  span.setAttribute("aria-label", `${piece.text || "end"}, ${p === null ? "no probability" : percent(p)}`);
  return span;
}

function drawFrom(first) {
  const box = $("output");
  while (box.children.length > first) box.lastElementChild.remove();
  box.append(...pieces.slice(first).map(spanOf));
  if (box.firstElementChild && !box.querySelector("[tabindex='0']")) box.firstElementChild.tabIndex = 0;
}

const redraw = throttle(() => drawFrom($("output").children.length));

function buttons() {
  $("generate").hidden = Boolean(running);
  $("completion-stop").hidden = !running;
  $("append").disabled = Boolean(running) || !answerText(pieces);
  $("output").setAttribute("aria-busy", String(Boolean(running)));
}

function status(text, problem = false) {
  $("completion-status").textContent = text;
  $("completion-status").classList.toggle("problem", problem);
}

const answerText = (list) => list.filter((p) => !p.echo).map((p) => p.text).join("");

// ---- asking ----

function requestFor(prompt, echo) {
  const request = { ...sampling(), prompt, logprobs: Math.min(TOP, server.alternatives), echo };
  if (server.model) request.model = server.model;
  if (!("max_tokens" in request)) request.max_tokens = server.context; // not 16, which none would mean
  return request;
}

async function receive(request, meter) {
  const reader = new Pieces();
  let first = request.echo;
  for await (const event of stream("v1/completions", request, running.signal)) {
    meter.see(event);
    for (const choice of event.choices) {
      for (const piece of reader.take(choice)) pieces.push({ ...piece, echo: first });
      first = false; // the first event of an echo is the prompt, and nothing else
    }
    status(meter.text());
    redraw.ask();
  }
}

function explain(error, meter) {
  if (error.name === "AbortError") {
    status(`${meter.text()}${meter.usage ? " · " : ""}stopped`);
    return;
  }
  status(error.message + (error.retryAfter ? ` Try again in ${error.retryAfter} s.` : ""), true);
  if (!(error instanceof Problem)) throw error;
}

// Goes on after the prompt and `kept`, pieces that are there already.
async function generate(kept = []) {
  if (running) return;
  const echo = $("echo").checked && !kept.length;
  const meter = new Meter();
  running = new AbortController();
  pieces = kept;
  hideCard();
  drawFrom(Math.max(0, kept.length - 1));
  status("Waiting for the first token …");
  buttons();
  try {
    await receive(requestFor($("prompt").value + answerText(kept), echo), meter);
  } catch (error) {
    explain(error, meter);
  } finally {
    running = null;
    redraw.flush();
    buttons();
  }
}

export function stopCompletion() {
  running?.abort();
}

// Another token in place of piece `index`, and on from there.
function takeInstead(index, other) {
  const { tokens } = pieces[index];
  const token = { text: other.text, logprob: other.logprob, top: tokens[0].top };
  generate([...pieces.slice(0, index), { text: other.text, tokens: [token] }]);
}

// ---- pointing at tokens ----

const indexOf = (span) => [...$("output").children].indexOf(span);

function show(span) {
  const index = indexOf(span);
  const piece = pieces[index];
  const choosable = !piece.echo && piece.tokens.length === 1 && !running;
  const choose = choosable ? (other) => takeInstead(index, other) : null;
  showCard(span, piece, choose && ((other) => isText(other.text) && choose(other)));
}

function move(span, by) {
  const spans = [...$("output").children];
  const next = spans[Math.min(spans.length - 1, Math.max(0, spans.indexOf(span) + by))];
  span.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function onKey(event) {
  const span = event.target.closest(".token");
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -1e9, End: 1e9 };
  if (!span || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in steps) move(span, steps[event.key]);
  else if (event.key === "Enter" || event.key === " ") pinCard(true);
  else return;
  event.preventDefault();
}

function listenToTokens() {
  const box = $("output");
  box.addEventListener("pointerover", (event) => {
    const span = event.target.closest(".token");
    if (span && !isPinned()) show(span);
  });
  box.addEventListener("pointerleave", () => !isPinned() && hideCard());
  box.addEventListener("focusin", (event) => show(event.target));
  box.addEventListener("focusout", () => !isPinned() && hideCard());
  box.addEventListener("keydown", onKey);
  box.addEventListener("click", (event) => {
    const span = event.target.closest(".token");
    if (!span) return;
    show(span);
    pinCard(false);
  });
}

// ---- the form ----

export function startCompletion(context) {
  server = context;
  const area = $("prompt");
  area.value = recall(session, "prompt") ?? "";
  area.addEventListener("input", () => store(session, "prompt", area.value));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    generate();
  });
  $("completion-form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  $("completion-stop").addEventListener("click", stopCompletion);
  $("shade").addEventListener("change", () => {
    $("output").classList.toggle("shaded", $("shade").checked);
    $("legend").hidden = !$("shade").checked;
  });
  $("append").addEventListener("click", () => {
    area.value += answerText(pieces);
    store(session, "prompt", area.value);
    pieces = [];
    clear($("output"));
    status("");
    buttons();
    area.focus();
  });
  listenToTokens();
}
