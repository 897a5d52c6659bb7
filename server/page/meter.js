// How fast an answer comes, and what of its prompt was remembered.

import { count } from "./dom.js";

export class Meter {
  constructor() {
    this.started = performance.now();
    this.first = 0;
    this.last = 0;
    this.usage = null;
  }

  see(event) {
    if (!event.usage) return;
    const before = this.usage?.completion_tokens ?? 0;
    this.usage = event.usage;
    if (event.usage.completion_tokens === before) return;
    this.last = performance.now();
    if (!this.first) {
      this.first = this.last;
      this.firstTokens = event.usage.completion_tokens;
    }
  }

  // Tokens after the first ones, over the time that they took.
  get speed() {
    const seconds = (this.last - this.first) / 1000;
    const tokens = (this.usage?.completion_tokens ?? 0) - this.firstTokens;
    return seconds > 0.05 && tokens > 0 ? tokens / seconds : 0; // less says nothing
  }

  get total() {
    return this.usage?.total_tokens ?? 0;
  }

  text() {
    if (!this.usage) return "";
    const { prompt_tokens: prompt, completion_tokens: answer } = this.usage;
    const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
    const parts = [`${count(answer)} ${answer === 1 ? "token" : "tokens"}`];
    if (this.speed) parts.push(`${this.speed.toFixed(1)} tokens/s`);
    if (this.first) parts.push(`first after ${((this.first - this.started) / 1000).toFixed(2)} s`);
    parts.push(`prompt ${count(prompt)}, ${count(cached)} cached`);
    return parts.join(" · ");
  }
}
