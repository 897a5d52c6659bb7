// Tokens with their probabilities, from the log-probabilities of a completion's events.

// A piece of the output: some text and the tokens that it came from. Mostly that is one token; a
// character cut over several, or text that was held back, has more.
export class Pieces {
  constructor() {
    this.waiting = [];
  }

  // The pieces that one choice of an event completes.
  take(choice) {
    const fresh = tokensOf(choice.logprobs);
    this.waiting.push(...fresh);
    if (!choice.text) return choice.finish_reason ? this.rest() : [];
    const tokens = this.waiting;
    this.waiting = [];
    const last = tokens.at(-1);
    if (tokens.map((t) => t.text).join("") === choice.text)
      return tokens.map((t) => ({ text: t.text, tokens: [t] }));
    const end = choice.finish_reason && tokens.length > 1 &&
      tokens.slice(0, -1).map((t) => t.text).join("") === choice.text;
    if (!end) return [{ text: choice.text, tokens }];
    return [...tokens.slice(0, -1).map((t) => ({ text: t.text, tokens: [t] })), { text: "", tokens: [last] }];
  }

  // Tokens without text: the end, or a stop that is not shown.
  rest() {
    const tokens = this.waiting;
    this.waiting = [];
    return tokens.map((t) => ({ text: "", tokens: [t] }));
  }
}

function tokensOf(logprobs) {
  if (!logprobs) return [];
  return logprobs.tokens.map((text, i) => {
    const logprob = logprobs.token_logprobs[i];
    const top = Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([t, l]) => ({ text: t, logprob: l }));
    return { text, logprob, top: top.sort((a, b) => b.logprob - a.logprob) };
  });
}

// null: the first token of a prompt has none.
export const probability = (token) => (token.logprob === null ? null : Math.exp(token.logprob));

export const percent = (p) => (p >= 0.9995 ? "100 %" : p < 0.0005 ? "< 0.1 %" : `${(p * 100).toFixed(1)} %`);

// A token's text where it must be seen whole.
export function visible(text) {
  return text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(nothing)";
}

// Half a character, or a special token, cannot be put into a prompt as text.
export const isText = (text) => !text.startsWith("bytes:") && !/^(<\|.*\|>|<\/?[a-z_]+>)$/.test(text);
