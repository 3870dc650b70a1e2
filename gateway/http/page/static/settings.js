// The settings form: what of it goes into a request.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

export class Settings {
  #panel = document.getElementById("settings-panel");
  #form = document.getElementById("settings");

  constructor() {
    const wide = window.matchMedia("(min-width: 60rem)");
    const open = () => (this.#panel.open = wide.matches);
    wide.addEventListener("change", open);
    open();
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("input", ({ target }) => target.removeAttribute("aria-invalid"));
    const { logprobs, top_logprobs: top } = this.#form.elements;
    logprobs.addEventListener("change", () => (top.disabled = !logprobs.checked));
    top.disabled = !logprobs.checked; // browsers keep a form over a reload
  }

  get hasModel() {
    return this.#form.elements.model.value !== "";
  }

  /** Offer the models; the chosen one stays chosen if it is still there. */
  showModels(models) {
    const { model } = this.#form.elements;
    const chosen = model.value;
    model.replaceChildren(
      ...models.map(({ id, max_model_len: length }) => {
        const option = new Option(id, id, false, id === chosen);
        option.title = `up to ${length} tokens`;
        return option;
      }),
    );
  }

  /**
   * The body of a request for the next message of a conversation.
   * @param {{role: string, content: string}[]} messages
   * @returns {object|null} null: a field holds what it cannot, and says so
   */
  request(messages) {
    if (!this.#form.checkValidity()) {
      this.#panel.open = true;
      this.#form.reportValidity();
      return null;
    }
    const { model, system, stop, logprobs, top_logprobs: top } = this.#form.elements;
    const first = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    const body = { model: model.value, messages: [...first, ...messages] };
    for (const name of NUMBERS) {
      const { value } = this.#form.elements[name];
      if (value !== "") body[name] = Number(value);
    }
    const stops = stop.value.split("\n").filter(Boolean);
    if (stops.length) body.stop = stops.map((text) => text.replaceAll("\\n", "\n"));
    if (logprobs.checked) Object.assign(body, { logprobs: true, top_logprobs: Number(top.value) });
    return body;
  }

  /** Mark the field that an error is about, if it is one of these. */
  markField(name) {
    const field = name && this.#form.elements.namedItem(name.replace(/\..*|\[.*/s, ""));
    if (field instanceof HTMLElement) field.setAttribute("aria-invalid", "true");
  }
}
