// The official OpenAI client for JavaScript, unmodified, against the program. CLIENTS_JS names the folder where it is
// installed: node clients_openai.mjs PROGRAM [TEST...]

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

let OpenAI;
try {
  const require = createRequire(path.join(process.env.CLIENTS_JS ?? process.cwd(), "any.js"));
  OpenAI = require("openai").OpenAI;
} catch {
  console.log("skipped: the package openai is not installed");
  process.exit(77);
}

const [program, ...only] = process.argv.slice(2);
const tiny = path.join(process.env.GOLDEN_DIR ?? "", "llama-gqa", "model.gguf");
const model = process.env.ROPEWALK_TEST_MODEL;
const started = [];

async function serve(file, ...settings) {
  const child = spawn(program, ["serve", file, "--port", "0", "--threads", "2", "--memory", "600m",
    "--served-model-name", "tiny,also", ...settings], { stdio: ["ignore", "ignore", "pipe"] });
  started.push(child);
  let text = "";
  const port = await new Promise((resolve, reject) => {
    child.stderr.on("data", (data) => {
      text += data;
      const found = / on 127\.0\.0\.1:(\d+)\n/.exec(text);
      if (found) resolve(Number(found[1]));
    });
    child.on("exit", () => reject(new Error(`no server: ${text}`)));
  });
  return { port, child, ended: new Promise((resolve) => child.on("exit", resolve)) };
}

const client = (server, more = {}) =>
  new OpenAI({ baseURL: `http://127.0.0.1:${server.port}/v1`, apiKey: "none", maxRetries: 0, ...more });

const small = await serve(tiny);
const large = model ? await serve(model) : null;
const body = (more) => ({ model: "tiny", prompt: "sea", max_tokens: 8, temperature: 0, ...more });
const complete = (more) => client(small).completions.create(body(more));
const chat = (more) => client(large).chat.completions.create({ model: "tiny", temperature: 0, max_completion_tokens: 16,
  messages: [{ role: "user", content: "How is a rope made?" }], ...more });

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function wait(check) {
  for (const end = Date.now() + 10000; !(await check());) {
    assert.ok(Date.now() < end, `waited for ${check}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

async function metric(server, name) {
  const text = await (await fetch(`http://127.0.0.1:${server.port}/metrics`)).text();
  return Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)$`, "m").exec(text)?.[1]);
}

const running = (server) => metric(server, "vllm:num_requests_running");

const tests = {
  async whole_and_streamed() {
    const whole = await complete({ logprobs: 2, max_tokens: 24 });
    assert.equal(whole.object, "text_completion");
    const events = await all(await complete({ logprobs: 2, max_tokens: 24, stream: true,
      stream_options: { include_usage: true } }));
    assert.equal(events.flatMap((e) => e.choices).map((c) => c.text).join(""), whole.choices[0].text);
    assert.deepEqual(events.flatMap((e) => e.choices).flatMap((c) => c.logprobs?.token_logprobs ?? []),
      whole.choices[0].logprobs.token_logprobs);
    assert.equal(events.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok(events.slice(0, -1).every((e) => e.usage === null));
  },

  async parameters() {
    const r = await complete({ prompt: ["rope", "sea"], n: 2, best_of: 3, echo: true, seed: 5, temperature: 1, top_p: 0.9,
      frequency_penalty: 0.5, presence_penalty: 0.5, logit_bias: { 40: -100 }, stop: ["zzz"], user: "me", suffix: null });
    assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2, 3]);
    assert.ok(r.choices[0].text.startsWith("rope") && r.choices[3].text.startsWith("sea"));
    assert.equal(r.usage.completion_tokens, 48);
    const ids = await complete({ prompt: [[40, 41], [42]], max_tokens: 1 });
    assert.equal(ids.usage.prompt_tokens, 3);
  },

  async chat_whole_and_streamed() {
    const whole = await chat({ logprobs: true, top_logprobs: 2, n: 2 });
    assert.equal(whole.choices[0].message.role, "assistant");
    assert.equal(whole.choices[0].logprobs.content.length, 16);
    const events = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(events[0].choices[0].delta, { role: "assistant", content: "" });
    const text = events.flatMap((e) => e.choices).map((c) => c.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content);
    assert.ok(events.at(-1).usage.prompt_tokens_details.cached_tokens > 0);
  },

  async chat_stream_helper() {
    const runner = client(large).chat.completions.stream({ model: "tiny", temperature: 0, max_tokens: 12,
      messages: [{ role: "developer", content: "Be brief." }, { role: "user", content: [{ type: "text", text: "Hi" }] }] });
    let text = "";
    runner.on("content", (delta) => { text += delta; });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, text);
    assert.equal(final.choices[0].finish_reason, "length");
  },

  async models() {
    assert.deepEqual((await all(client(small).models.list())).map((m) => m.id), ["tiny", "also"]);
    assert.equal((await client(small).models.retrieve("also")).id, "also");
    await assert.rejects(client(small).models.retrieve("other"), OpenAI.NotFoundError);
  },

  async mistakes() {
    for (const [name, value] of [["temperature", 9], ["n", 0], ["logit_bias", { x: 1 }], ["prompt", []], ["stop", 4]]) {
      await assert.rejects(complete({ [name]: value }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        assert.equal(error.param, name);
        assert.equal(error.type, "invalid_request_error");
        return true;
      });
    }
    await assert.rejects(complete({ prompt: Array(300).fill(300) }), (e) => e.code === "context_length_exceeded");
  },

  async retries() {
    const server = await serve(model, "--parallel", "1", "--max-queue", "1");
    const long = { model: "tiny", prompt: "sea", max_tokens: 3000, stream: true, ignore_eos: true };
    const held = [await client(server).completions.create(long)];
    const queued = client(server).completions.create(long).catch(() => null);
    await wait(async () => (await metric(server, "vllm:num_requests_waiting")) === 1);
    const short = { model: "tiny", prompt: "x", max_tokens: 1 };
    await assert.rejects(client(server).completions.create(short), (error) => {
      assert.ok(error instanceof OpenAI.RateLimitError);
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
      return true;
    });
    let sent = 0;
    const counting = async (...args) => {
      const response = await fetch(...args);
      if (++sent === 1) {
        held[0].controller.abort();
        queued.then((stream) => stream?.controller.abort());
      }
      return response;
    };
    assert.ok((await client(server, { maxRetries: 6, fetch: counting }).completions.create(short)).choices);
    assert.ok(sent > 1, `${sent} requests`);
    sent = 0;
    await assert.rejects(client(server, { maxRetries: 6, fetch: counting }).completions.create({ ...short, n: 0 }));
    assert.equal(sent, 1);
    server.child.kill();
  },

  async cut_streams_raise() {
    const server = await serve(model, "--drain-seconds", "0.2");
    const stream = await client(server).completions.create({ model: "tiny", prompt: "sea", max_tokens: 3000,
      stream: true, ignore_eos: true });
    let events = 0;
    await assert.rejects(async () => {
      for await (const _ of stream) if (events++ === 0) server.child.kill("SIGTERM");
    }, /shut/);
    assert.ok(events > 0);
    assert.equal(await server.ended, 0);
  },

  async leaving_frees_the_work() {
    const stream = await client(large).completions.create({ model: "tiny", prompt: "sea", max_tokens: 3000, stream: true,
      ignore_eos: true });
    for await (const _ of stream) break;
    await wait(async () => (await running(large)) === 0);
  },

  async many_at_once_on_kept_connections() {
    const texts = await Promise.all(Array.from({ length: 40 }, (_, i) => complete({ prompt: `rope ${i % 4}` })));
    for (let i = 4; i < 40; i++) assert.equal(texts[i].choices[0].text, texts[i % 4].choices[0].text);
  },
};

const needsModel = new Set(["chat_whole_and_streamed", "chat_stream_helper", "retries", "cut_streams_raise",
  "leaving_frees_the_work"]);
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (only.length && !only.includes(name)) continue;
  const began = performance.now();
  let word = "ok";
  try {
    if (model || !needsModel.has(name)) await test();
    else word = "skipped: no default model";
  } catch (error) {
    console.log(error);
    word = "FAILED";
    failed++;
  }
  console.log(`${word.padEnd(8)} ${name} (${((performance.now() - began) / 1000).toFixed(2)} s)`);
}
console.log(`${failed} failed`);
for (const child of started) child.kill("SIGKILL");
http.globalAgent.destroy();
process.exit(failed ? 1 : 0);
