// The list of messages: it follows the newest text, and lets one walk over tokens.

import { textElement } from "/static/answer.js";

const NEAR_END_PX = 48;
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

export class Transcript {
  #list = document.getElementById("transcript");
  #welcome = document.getElementById("welcome");
  #follows = true;
  #isScrolling = false;
  #top = 0;
  #notice = null;

  /** @param {import("/static/inspector.js").Inspector} inspector shows the token in question */
  constructor(inspector) {
    const inspect = ({ target }) => target.tokens && inspector.show(target.tokens);
    this.#list.addEventListener("pointerover", inspect);
    this.#list.addEventListener("focusin", inspect);
    this.#list.addEventListener("keydown", (event) => this.#walk(event));
    this.#list.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.#list;
      const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
      // Text that was added meanwhile is no reason to stay behind; only the reader goes up.
      this.#follows = isAtEnd || (this.#follows && scrollTop >= this.#top);
      this.#top = scrollTop;
    });
  }

  /** Add what the user said; returns its element. */
  addQuestion(text) {
    const message = document.createElement("article");
    message.className = "message user";
    message.setAttribute("aria-label", "Your message");
    message.append(textElement("div", "text", text));
    this.#follows = true;
    this.add(message);
    return message;
  }

  /** Say what is wrong with the page as a whole; "": nothing is. */
  notice(text) {
    this.#notice?.remove();
    this.#notice = text ? textElement("p", "error", text) : null;
    this.#notice?.setAttribute("role", "alert");
    if (this.#notice) this.add(this.#notice);
  }

  add(element) {
    this.#welcome.remove();
    this.#list.append(element);
    this.follow();
  }

  /** Scroll to the end, unless the reader has gone elsewhere; once a frame, since it costs a layout. */
  follow() {
    if (!this.#follows || this.#isScrolling) return;
    this.#isScrolling = true;
    requestAnimationFrame(() => {
      this.#isScrolling = false;
      this.#list.scrollTop = this.#list.scrollHeight;
    });
  }

  clear() {
    this.#list.replaceChildren(this.#welcome);
  }

  /** The arrow keys go from token to token; from the list itself to the last answer's first. */
  #walk(event) {
    const step = STEPS[event.key];
    if (!step) return;
    const tokens = [...this.#list.querySelectorAll(".token")];
    const here = tokens.indexOf(event.target);
    const start = this.#list.querySelector(".message:last-of-type .token");
    const next = here < 0 ? start : tokens[here + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
