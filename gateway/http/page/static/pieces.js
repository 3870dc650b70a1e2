// Which part of a text which tokens wrote.
//
// A chunk's text and its tokens need not agree: text waits that may become a stop string, special
// tokens are no text, a character may have several tokens. The text is what counts.

/** @typedef {{token: string, logprob: number, bytes: number[], top_logprobs: object[]}} Token */

export class PieceWriter {
  #utf8 = new TextDecoder();
  #unfinished = { tokens: [], bytes: [] };
  #waiting = [];
  #text = "";

  /**
   * Take what a chunk brought; returns the pieces that are certain now.
   * @param {string} text
   * @param {Token[]} tokens
   * @returns {{text: string, tokens: Token[]}[]} without tokens: text that none is known for
   */
  push(text, tokens) {
    for (const token of tokens) this.#addToken(token);
    this.#text += text;
    const pieces = [];
    while (this.#text && this.#waiting.length) {
      const [next] = this.#waiting;
      if (this.#text.startsWith(next.text)) {
        this.#text = this.#text.slice(next.text.length);
        pieces.push(next);
      } else if (next.text.startsWith(this.#text)) {
        break; // the rest of it may come
      }
      this.#waiting.shift(); // written, or no part of the text
    }
    if (!this.#waiting.length && !this.#unfinished.tokens.length) pieces.push(...this.#takeText([]));
    return pieces;
  }

  /** The rest, once no more text comes in this place; tokens that wait stay for what follows. */
  flush() {
    const last = this.#text ? this.#waiting.shift() : undefined;
    return this.#takeText(last?.tokens ?? this.#unfinished.tokens);
  }

  /** Tokens wait for each other until their characters are whole. */
  #addToken(token) {
    const tokens = [...this.#unfinished.tokens, token];
    const bytes = [...this.#unfinished.bytes, ...token.bytes];
    const text = this.#utf8.decode(new Uint8Array(bytes));
    const whole = new TextDecoder().decode(new Uint8Array(bytes), { stream: true });
    if (text === whole) {
      this.#waiting.push({ text, tokens });
      this.#unfinished = { tokens: [], bytes: [] };
    } else {
      this.#unfinished = { tokens, bytes };
    }
  }

  #takeText(tokens) {
    const text = this.#text;
    this.#text = "";
    return text ? [{ text, tokens }] : [];
  }
}
