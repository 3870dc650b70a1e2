// How fast an answer came, as this browser saw it.

export class Timings {
  #start = performance.now();
  #first = null;
  #last = null;
  #tokens = 0;

  /** Note that so many tokens arrived; 0: nothing did. */
  arrived(numTokens) {
    if (!numTokens) return;
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#tokens += numTokens;
  }

  /**
   * What is known of the answer, part by part.
   * @param {{prompt_tokens: number, completion_tokens: number}|null} usage null: it was stopped
   * @returns {string[]}
   */
  summary(usage) {
    const parts = [];
    const tokens = usage?.completion_tokens ?? this.#tokens;
    if (usage) parts.push(`${usage.prompt_tokens} + ${tokens} tokens`);
    else if (tokens) parts.push(`${tokens} tokens`);
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${cached} cached`);
    if (this.#first !== null) parts.push(`first after ${seconds(this.#first - this.#start)}`);
    const span = this.#last - this.#first;
    if (tokens > 1 && span > 0) parts.push(`${((1000 * (tokens - 1)) / span).toFixed(1)} tokens/s`);
    return parts;
  }
}

/** A duration for people. */
export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}
