// The chat: messages, the answer that is coming, and what can be done with them.

import { Problem, stream } from "./api.js";
import { $, clear, copy, count, el, fit, recall, session, store, throttle } from "./dom.js";
import { markdown } from "./markdown.js";
import { Meter } from "./meter.js";
import { sampling, systemMessage } from "./settings.js";

const ideas = [
  "Explain why the sky is blue to a child.",
  "Write a haiku about a harbour at night.",
  "List three uses for an old rope.",
];

let messages = []; // {role, content, note, cut}
let running = null; // the AbortController of the answer that is coming
let server; // what page.js knows: {model, context, tell}

// ---- drawing ----

const atEnd = () => {
  const box = $("chat-scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
};

function toEnd() {
  $("chat-scroll").scrollTop = $("chat-scroll").scrollHeight;
}

function action(label, run) {
  const button = el("button", { type: "button", className: "link", textContent: label });
  button.addEventListener("click", run);
  return button;
}

function actionsOf(message, index) {
  const taken = action("Copy", async () => {
    server.tell((await copy(message.content)) ? "Copied." : "The browser does not let this page copy.");
  });
  if (message.role === "user") return [taken, action("Edit", () => edit(index))];
  const last = index === messages.length - 1;
  const more = [taken];
  if (last) more.push(action("Again", () => again(index)));
  if (last && message.cut) more.push(action("Continue", () => answer(message)));
  return more;
}

function fill(node, message, index) {
  const body = el("div", { className: "body" });
  if (message.role === "user") body.textContent = message.content;
  else body.append(...markdown(message.content));
  const foot = el("div", { className: "foot" });
  const busy = running && index === messages.length - 1;
  if (message.problem) foot.append(el("span", { className: "problem", textContent: message.problem }));
  if (message.note) foot.append(el("span", { className: "note", textContent: message.note }));
  if (!running) foot.append(...actionsOf(message, index));
  node.className = `message ${message.role}${busy ? " busy" : ""}`;
  node.replaceChildren(el("span", { className: "hidden", textContent: message.role === "user" ? "You:" : "Model:" }),
    body, foot);
}

function draw() {
  clear($("messages"));
  messages.forEach((message, index) => {
    const node = el("article");
    fill(node, message, index);
    $("messages").append(node);
  });
  $("welcome").hidden = messages.length > 0;
  $("send").hidden = Boolean(running);
  $("chat-stop").hidden = !running;
  $("new-chat").disabled = !messages.length;
  $("messages").setAttribute("aria-busy", String(Boolean(running)));
}

const redraw = throttle(() => {
  const stay = atEnd();
  const index = messages.length - 1;
  if (index >= 0) fill($("messages").lastElementChild, messages[index], index);
  if (stay) toEnd();
});

function status(text) {
  $("chat-status").textContent = text;
}

function keep() {
  store(session, "chat", messages);
}

// ---- asking ----

function requestFor(continued) {
  const system = systemMessage();
  const sent = messages.filter((message) => message.content);
  const request = { ...sampling(), messages: sent.map(({ role, content }) => ({ role, content })) };
  if (server.model) request.model = server.model;
  if (system) request.messages.unshift({ role: "system", content: system });
  if (continued) Object.assign(request, { continue_final_message: true, add_generation_prompt: false });
  return request;
}

async function receive(message, request, meter) {
  for await (const event of stream("v1/chat/completions", request, running.signal)) {
    if (!meter.usage) status("");
    meter.see(event);
    for (const choice of event.choices) {
      message.content += choice.delta.content ?? "";
      if (choice.finish_reason) message.cut = choice.finish_reason === "length";
    }
    message.note = meter.text();
    redraw.ask();
  }
  status(contextText(meter));
}

function contextText(meter) {
  if (!server.context || !meter.total) return "";
  return `${count(meter.total)} of ${count(server.context)} tokens of context used`;
}

function explain(error, message) {
  if (error.name === "AbortError") {
    message.note = message.note ? `${message.note} · stopped` : "stopped";
    message.cut = true;
    return;
  }
  message.problem = error.message;
  if (error.retryAfter) message.problem += ` Try again in ${error.retryAfter} s.`;
  if (!(error instanceof Problem)) throw error;
}

// Adds an answer to the conversation, or goes on with the last one.
async function answer(continued = null) {
  const message = continued ?? { role: "assistant", content: "" };
  const meter = new Meter();
  const request = requestFor(continued);
  message.problem = message.note = "";
  if (!continued) messages.push(message);
  running = new AbortController();
  status("Waiting for the first token …");
  draw();
  toEnd();
  try {
    await receive(message, request, meter);
  } catch (error) {
    status("");
    explain(error, message);
  } finally {
    running = null;
    keep();
    const stay = atEnd();
    draw();
    if (stay) toEnd();
  }
}

function say(text) {
  if (running || !text.trim()) return;
  messages.push({ role: "user", content: text.trim() });
  $("message").value = "";
  fit($("message"));
  answer();
}

function again(index) {
  messages.length = index;
  answer();
}

function edit(index) {
  $("message").value = messages[index].content;
  messages.length = index;
  keep();
  draw();
  fit($("message"));
  $("message").focus();
}

export function stopChat() {
  running?.abort();
}

function newChat() {
  stopChat();
  messages = [];
  keep();
  status("");
  draw();
  $("message").focus();
}

// ---- the form ----

function listen() {
  const area = $("message");
  area.addEventListener("input", () => fit(area));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say(area.value);
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say(area.value);
  });
  $("chat-stop").addEventListener("click", stopChat);
  $("new-chat").addEventListener("click", newChat);
}

export function startChat(context) {
  server = context;
  const kept = recall(session, "chat");
  messages = Array.isArray(kept) ? kept : [];
  for (const idea of ideas) {
    const button = el("button", { type: "button", className: "plain", textContent: idea });
    button.addEventListener("click", () => say(idea));
    $("ideas").append(button);
  }
  listen();
  draw();
  toEnd();
}
