// One token under the eye: its probability, and what else was likely there.

import { percent, visible } from "/static/probability.js";

export class Inspector {
  #place = document.getElementById("inspector");
  #shown = null;

  /** @param {import("/static/pieces.js").Token[]} tokens of one piece of text */
  show(tokens) {
    if (this.#shown === tokens) return;
    this.#shown = tokens;
    this.#place.replaceChildren(...tokens.map(row));
  }

  clear() {
    this.#shown = null;
    this.#place.replaceChildren();
  }
}

function row(token) {
  const list = document.createElement("ol");
  const isTop = token.top_logprobs.some((other) => isSame(other, token));
  // A drawn token need not be among the likeliest.
  const all = isTop ? token.top_logprobs : [token, ...token.top_logprobs];
  list.append(...all.map((each) => chip(each, isSame(each, token))));
  return list;
}

function isSame(a, b) {
  return a.bytes.length === b.bytes.length && a.bytes.every((byte, i) => byte === b.bytes[i]);
}

function chip(token, isChosen) {
  const item = document.createElement("li");
  item.className = isChosen ? "chip chosen" : "chip";
  if (isChosen) item.setAttribute("aria-current", "true");
  item.style.setProperty("--share", `${100 * Math.exp(token.logprob)}%`);
  const text = document.createElement("code");
  text.textContent = visible(token.token);
  const share = document.createElement("span");
  share.textContent = percent(token.logprob);
  item.append(text, share);
  return item;
}
