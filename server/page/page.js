// What holds the page together: the model, the tabs, the settings' drawer, the key.

import { forgetKey, get, hasKey, onKeyNeeded } from "./api.js";
import { leaveCard, startCard } from "./card.js";
import { startChat, stopChat } from "./chat.js";
import { startCompletion, stopCompletion } from "./completion.js";
import { $, count, el, local, recall, store } from "./dom.js";
import { startSettings } from "./settings.js";

const context = { model: "", context: 0, alternatives: 0, tell: (text) => { $("chat-status").textContent = text; } };

// ---- the model ----

function showModel(model) {
  context.model = model.id;
  context.context = model.max_model_len ?? 0;
  const most = model.meta?.max_logprobs ?? 0;
  context.alternatives = most < 0 ? Infinity : most;
  $("context").textContent = context.context ? `${count(context.context)} tokens of context` : "";
  document.title = `${model.id} · Ropewalk`;
}

function showModels(models) {
  const select = $("model");
  select.replaceChildren(...models.map((m) => el("option", { value: m.id, textContent: m.id })));
  select.onchange = () => showModel(models[select.selectedIndex]);
  if (models.length) showModel(models[0]);
}

function banner(text, again) {
  $("banner").hidden = !text;
  $("banner").replaceChildren(text);
  if (!again) return;
  const button = el("button", { type: "button", className: "plain", textContent: "Try again" });
  button.addEventListener("click", again);
  $("banner").append(" ", button);
}

async function loadModels() {
  banner("");
  try {
    showModels((await get("v1/models")).data);
  } catch (error) {
    banner(error.message, loadModels);
  }
  showKey();
}

// ---- the key ----

// Links are followed without the key, so they are not shown beside one.
function showKey() {
  $("forget-key").hidden = !hasKey();
  $("metrics-link").hidden = $("models-link").hidden = hasKey();
}

let asking = null; // several requests may need it at once

function ask(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    let key = null;
    $("key-note").textContent = refused ? "The server did not accept the last one."
      : "It is kept in this tab only, until the tab is closed.";
    $("key").value = "";
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      key = $("key").value.trim();
      dialog.close();
    };
    $("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      asking = null;
      resolve(key || null);
    };
    dialog.showModal();
  });
  return asking;
}

// ---- tabs and drawer ----

const tabs = ["chat", "completion"];

function choose(name) {
  for (const tab of tabs) {
    const on = tab === name;
    $(tab).hidden = !on;
    $(`tab-${tab}`).setAttribute("aria-selected", String(on));
    $(`tab-${tab}`).tabIndex = on ? 0 : -1;
  }
  document.body.dataset.mode = name;
  store(local, "tab", name);
}

function listenToTabs() {
  for (const [i, tab] of tabs.entries()) {
    $(`tab-${tab}`).addEventListener("click", () => choose(tab));
    $(`tab-${tab}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const next = tabs[(i + 1) % tabs.length];
      choose(next);
      $(`tab-${next}`).focus();
    });
  }
}

// On wide screens the settings are always there; on others this shows them.
function drawer(open) {
  document.body.classList.toggle("drawer", open);
  $("open-settings").setAttribute("aria-expanded", String(open));
  if (open) $("close-settings").focus();
  else if ($("settings").contains(document.activeElement)) $("open-settings").focus();
}

function onEscape(event) {
  if (event.key !== "Escape" || $("key-dialog").open) return;
  if (leaveCard()) return;
  if (document.body.classList.contains("drawer")) {
    drawer(false);
    return;
  }
  stopChat();
  stopCompletion();
}

function start() {
  onKeyNeeded(ask);
  startSettings();
  startCard();
  startChat(context);
  startCompletion(context);
  listenToTabs();
  const tab = recall(local, "tab");
  choose(tabs.includes(tab) ? tab : "chat");
  document.addEventListener("keydown", onEscape);
  $("open-settings").addEventListener("click", () => drawer(!document.body.classList.contains("drawer")));
  $("close-settings").addEventListener("click", () => drawer(false));
  $("forget-key").addEventListener("click", () => {
    forgetKey();
    loadModels();
  });
  loadModels();
}

start();
