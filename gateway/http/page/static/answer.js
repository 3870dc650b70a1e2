// An answer of the model on the page, while it comes and afterwards. Text only ever becomes text.

import { PieceWriter } from "/static/pieces.js";
import { percent } from "/static/probability.js";

export class Answer {
  #element = document.createElement("article");
  #reasoning = null;
  #content = document.createElement("div");
  #target = null;
  #writer = new PieceWriter();

  constructor() {
    this.#element.className = "message assistant";
    this.#element.setAttribute("aria-label", "Answer");
    this.#element.setAttribute("aria-busy", "true");
    this.#content.className = "text";
    this.#element.append(this.#content);
    /** What goes back to the model as its own words. */
    this.text = "";
    /** Whether it is part of the conversation: not so if it failed before it began. */
    this.stands = false;
  }

  get element() {
    return this.#element;
  }

  /**
   * Take what came.
   * @param {{delta: object, logprobs: object|null}} choice of a chunk
   * @returns {number} of tokens, at least; 0: nothing came
   */
  push({ delta, logprobs }) {
    let tokens = logprobs?.content ?? [];
    const numTokens = tokens.length || Number(Boolean(delta.reasoning || delta.content));
    if (delta.reasoning) {
      this.#write(this.#reasoningText(), delta.reasoning, tokens);
      tokens = [];
    }
    this.#write(delta.content ? this.#content : this.#target, delta.content ?? "", tokens);
    this.text += delta.content ?? "";
    return numTokens;
  }

  /**
   * Nothing more comes.
   * @param {string[]} about facts about it
   * @param {string} [error]
   */
  end(about, error) {
    this.#show(this.#target, this.#writer.flush());
    this.#element.removeAttribute("aria-busy");
    this.stands = this.text !== "" || !error;
    if (error) {
      const line = textElement("p", "error", error);
      line.setAttribute("role", "alert");
      this.#element.append(line);
    }
    if (about.length) this.#element.append(textElement("p", "about", about.join(" · ")));
  }

  #write(target, text, tokens) {
    if (target !== this.#target) {
      this.#show(this.#target, this.#writer.flush());
      this.#target = target;
    }
    this.#show(target, this.#writer.push(text, tokens));
  }

  #show(target, pieces) {
    target?.append(...pieces.map(({ text, tokens }) => (tokens.length ? tokenSpan(text, tokens) : text)));
  }

  #reasoningText() {
    if (!this.#reasoning) {
      const details = document.createElement("details");
      details.className = "reasoning";
      details.open = true;
      this.#reasoning = textElement("div", "text", "");
      details.append(textElement("summary", "", "Reasoning"), this.#reasoning);
      this.#element.prepend(details);
    }
    return this.#reasoning;
  }
}

function tokenSpan(text, tokens) {
  const logprob = tokens.reduce((sum, token) => sum + token.logprob, 0);
  const span = textElement("span", "token", text);
  span.title = percent(logprob);
  span.style.setProperty("--surprise", (1 - Math.exp(logprob)).toFixed(3));
  span.tabIndex = -1;
  span.tokens = tokens;
  return span;
}

/** An element with a class and a text. */
export function textElement(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
