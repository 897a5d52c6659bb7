// The sampling settings: one table, from which the form and the requests are made.

import { $, clear, el, local, recall, store } from "./dom.js";

// `value` is what the page begins with; `neutral` is what the server does when nothing is sent.
const fields = [
  { name: "system", label: "System message", kind: "text", value: "", chat: true,
    hint: "tells the model who it is; chat only" },
  { name: "max_tokens", label: "Longest answer", kind: "number", min: 1, step: 1, value: 512,
    hint: "in tokens; empty: until the context is full" },
  { name: "temperature", label: "Temperature", kind: "range", min: 0, max: 2, step: 0.05, value: 0.7, neutral: 1,
    hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", kind: "range", min: 0.05, max: 1, step: 0.01, value: 0.95, neutral: 1,
    hint: "among the likeliest of this mass" },
  { name: "min_p", label: "Min p", kind: "range", min: 0, max: 1, step: 0.01, value: 0, neutral: 0,
    hint: "none less likely than this share of the likeliest" },
  { name: "top_k", label: "Top k", kind: "number", min: 0, step: 1, value: 0, neutral: 0,
    hint: "among the k likeliest; 0: all" },
  { name: "seed", label: "Seed", kind: "number", step: 1, value: "",
    hint: "the same one repeats an answer; empty: another each time" },
  { name: "stop", label: "Stop at", kind: "text", value: "", lines: true, hint: "one text a line" },
  { more: "Repetition" },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "range", min: 1, max: 2, step: 0.01, value: 1,
    neutral: 1, hint: "counts prompt and answer" },
  { name: "presence_penalty", label: "Presence penalty", kind: "range", min: -2, max: 2, step: 0.05, value: 0,
    neutral: 0, hint: "for tokens that the answer has" },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "range", min: -2, max: 2, step: 0.05, value: 0,
    neutral: 0, hint: "for each time that it has them" },
  { name: "dry_multiplier", label: "DRY multiplier", kind: "range", min: 0, max: 5, step: 0.05, value: 0, neutral: 0,
    hint: "against repeated passages; 0: off" },
  { more: "Other samplers" },
  { name: "typical_p", label: "Typical p", kind: "range", min: 0.05, max: 1, step: 0.01, value: 1, neutral: 1,
    hint: "tokens about as surprising as expected" },
  { name: "top_n_sigma", label: "Top n sigma", kind: "range", min: 0, max: 5, step: 0.1, value: 0, neutral: 0,
    hint: "within n deviations of the likeliest; 0: off" },
  { name: "xtc_probability", label: "XTC probability", kind: "range", min: 0, max: 1, step: 0.05, value: 0,
    neutral: 0, hint: "how often the likeliest are left out" },
  { name: "xtc_threshold", label: "XTC threshold", kind: "range", min: 0, max: 0.5, step: 0.01, value: 0.1,
    neutral: 0.1, hint: "those of at least this probability" },
];
const named = fields.filter((f) => f.name);

let values = {};

const defaults = () => Object.fromEntries(named.map((f) => [f.name, f.value]));

function set(field, value) {
  values[field.name] = value;
  store(local, "settings", values);
}

function valueOf(input) {
  return input.value === "" || !input.checkValidity() ? "" : input.valueAsNumber;
}

function textField(field) {
  const area = el("textarea", { id: `set-${field.name}`, rows: field.lines ? 1 : 3, value: values[field.name],
    spellcheck: !field.lines });
  area.addEventListener("input", () => set(field, area.value));
  return [area];
}

function numberField(field) {
  const input = el("input", { id: `set-${field.name}`, type: "number", step: field.step, value: values[field.name] });
  for (const limit of ["min", "max"]) if (limit in field) input[limit] = field[limit];
  input.addEventListener("input", () => set(field, valueOf(input)));
  return [input];
}

function rangeField(field) {
  const [input] = numberField(field);
  const slider = el("input", { type: "range", min: field.min, max: field.max, step: field.step,
    value: values[field.name], tabIndex: -1, "aria-hidden": "true" });
  input.addEventListener("input", () => { slider.value = input.value; });
  slider.addEventListener("input", () => {
    input.value = slider.value;
    set(field, slider.valueAsNumber);
  });
  return [input, slider];
}

const makers = { text: textField, number: numberField, range: rangeField };

function row(field) {
  const inputs = makers[field.kind](field);
  const hint = el("span", { className: "quiet", id: `hint-${field.name}`, textContent: field.hint });
  inputs[0].setAttribute("aria-describedby", hint.id);
  return el("div", { className: `field ${field.kind}` },
    el("label", { htmlFor: `set-${field.name}`, textContent: field.label }), ...inputs, hint);
}

function show() {
  let into = $("fields");
  clear(into);
  for (const field of fields) {
    if (field.name) {
      into.append(row(field));
    } else {
      into = el("details", {}, el("summary", { textContent: field.more }));
      $("fields").append(into);
    }
  }
}

export function startSettings() {
  const kept = recall(local, "settings") ?? {};
  values = defaults();
  for (const { name, kind } of named) {
    const wanted = kind === "text" ? "string" : "number";
    if (kept[name] === "" || typeof kept[name] === wanted) values[name] = kept[name];
  }
  show();
  $("settings-form").addEventListener("submit", (event) => event.preventDefault());
  $("reset").addEventListener("click", () => {
    values = defaults();
    store(local, "settings", null);
    show();
  });
}

export const systemMessage = () => values.system.trim();

// What a request says of sampling: only what differs from what the server does by itself.
export function sampling() {
  const request = {};
  for (const field of named) {
    const value = values[field.name];
    if (field.chat || value === "" || value === field.neutral) continue;
    request[field.name] = field.lines ? value.split("\n").filter((line) => line) : value;
  }
  if (request.stop?.length === 0) delete request.stop;
  return request;
}
