// Small things that every part of the page uses.

export const $ = (id) => document.getElementById(id);

// An element with properties and children; text only ever becomes text.
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function clear(node) {
  node.replaceChildren();
}

// Browsers may forbid storage; the page works without it.
export function store(area, name, value) {
  try {
    if (value === null) area().removeItem(`ropewalk.${name}`);
    else area().setItem(`ropewalk.${name}`, JSON.stringify(value));
  } catch { /* not kept, then */ }
}

export function recall(area, name) {
  try {
    return JSON.parse(area().getItem(`ropewalk.${name}`));
  } catch {
    return null;
  }
}

export const session = () => window.sessionStorage;
export const local = () => window.localStorage;

const integers = new Intl.NumberFormat("en");
export const count = (n) => integers.format(n);

// A textarea as high as its text, within its style's limits.
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

// True when the text is on the clipboard. Pages that came by plain HTTP from another machine have no
// navigator.clipboard; what is selected can be copied there all the same.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// Calls `draw` at most once a frame; flush() at once.
export function throttle(draw) {
  let waiting = 0;
  const run = () => {
    waiting = 0;
    draw();
  };
  return {
    ask: () => { waiting ||= requestAnimationFrame(run); },
    flush: () => {
      cancelAnimationFrame(waiting);
      run();
    },
  };
}
