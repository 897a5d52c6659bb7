// The server: JSON requests, and streams of events.

import { recall, session, store } from "./dom.js";

export class Problem extends Error {
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let askForKey = async () => null;

// `ask(refused)` resolves to a key, or to null when the person has none.
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export const hasKey = () => recall(session, "key") !== null;
export const forgetKey = () => store(session, "key", null);

async function send(path, body, signal) {
  const key = recall(session, "key");
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  const request = { headers, signal, cache: "no-store", credentials: "omit" };
  if (body) Object.assign(request, { method: "POST", body: JSON.stringify(body) });
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.");
  }
}

async function problemOf(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON: the number must do */ }
  return new Problem(message, response.status, Number(response.headers.get("Retry-After")) || 0);
}

async function call(path, body, signal) {
  for (;;) {
    const response = await send(path, body, signal);
    if (response.ok) return response;
    if (response.status !== 401) throw await problemOf(response);
    const key = await askForKey(hasKey());
    if (key === null) throw await problemOf(response);
    store(session, "key", key);
  }
}

export async function get(path) {
  return (await call(path)).json();
}

function* blocks(buffer) {
  for (let end; (end = buffer.text.indexOf("\n\n")) >= 0;) {
    const block = buffer.text.slice(0, end);
    buffer.text = buffer.text.slice(end + 2);
    if (block.startsWith("data: ")) yield block.slice(6);
  }
}

// Yields the JSON of each event. An error within the stream is thrown, and so is an end without
// the end mark: half an answer must not look like a whole one.
export async function* stream(path, body, signal) {
  const options = { include_usage: true, continuous_usage_stats: true };
  const response = await call(path, { ...body, stream: true, stream_options: options }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const buffer = { text: "" };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      buffer.text += value;
      for (const data of blocks(buffer)) {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Problem(event.error.message, 200);
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem("The connection was lost before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new Problem("The connection ended before the answer was complete.");
}
