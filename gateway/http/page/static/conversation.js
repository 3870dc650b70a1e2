// The conversation: its turns, and the one answer that may be on its way.

import { Answer } from "/static/answer.js";
import { streamChat } from "/static/api.js";
import { Timings } from "/static/timings.js";
import { traceOf } from "/static/trace.js";

const ENDS = { length: "ended at its limit", abort: "aborted by the server" };

export class Conversation {
  #turns = [];
  #running = null;

  /**
   * @param {object} parts
   * @param {import("/static/transcript.js").Transcript} parts.transcript
   * @param {import("/static/settings.js").Settings} parts.settings
   * @param {import("/static/key.js").KeyAsker} parts.keys
   * @param {() => void} parts.onChange called when what can be done has changed
   */
  constructor({ transcript, settings, keys, onChange }) {
    Object.assign(this, { transcript, settings, keys, onChange });
  }

  get isRunning() {
    return this.#running !== null;
  }

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** Say something; false: a setting is wrong, and nothing was sent. */
  send(text) {
    // A question that got no answer goes, so that the page shows what the model is told.
    const kept = this.#turns.filter((turn) => turn.answer.stands);
    const body = this.settings.request([...messages(kept), question(text)]);
    if (body === null) return false;
    for (const turn of this.#turns) if (!kept.includes(turn)) remove(turn);
    this.#turns = [...kept, { text, element: this.transcript.addQuestion(text), answer: null }];
    this.#run(body);
    return true;
  }

  /** Answer the last message once more. */
  regenerate() {
    const last = this.#turns.at(-1);
    const body = this.settings.request([...messages(this.#turns.slice(0, -1)), question(last.text)]);
    if (body === null) return;
    last.answer.element.remove();
    this.#run(body);
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#running = null;
    this.#turns = [];
    this.transcript.clear();
    this.onChange();
  }

  async #run(body) {
    const running = new AbortController();
    const answer = new Answer();
    this.#running = running;
    this.#turns.at(-1).answer = answer;
    this.transcript.add(answer.element);
    this.onChange();
    await this.keys
      .with((key) => this.#stream(body, key, answer, running.signal))
      .catch((error) => this.#fail(answer, error));
    if (this.#running !== running) return; // cleared meanwhile
    this.#running = null;
    this.transcript.follow();
    this.onChange();
  }

  async #stream(body, key, answer, signal) {
    const timings = new Timings();
    let usage = null;
    let end = "";
    let requestId = null;
    const onStarted = (id) => (requestId = id);
    try {
      for await (const chunk of streamChat(body, key, signal, onStarted)) {
        for (const choice of chunk.choices) {
          end = ENDS[choice.finish_reason] ?? end;
          timings.arrived(answer.push(choice));
        }
        usage = chunk.usage ?? usage;
        this.transcript.follow();
      }
      answer.end([...timings.summary(usage), end].filter(Boolean));
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      answer.end([...timings.summary(null), "stopped"]);
    } finally {
      if (requestId) answer.element.append(traceOf(requestId, this.keys));
    }
  }

  #fail(answer, error) {
    answer.end([], String(error));
    this.settings.markField(error.field);
  }
}

function question(text) {
  return { role: "user", content: text };
}

function messages(turns) {
  return turns.flatMap(({ text, answer }) => [
    question(text),
    { role: "assistant", content: answer.text },
  ]);
}

function remove({ element, answer }) {
  element.remove();
  answer.element.remove();
}
