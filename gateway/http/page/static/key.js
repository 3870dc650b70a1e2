// The API key: in this tab's sessionStorage and nowhere else, asked for when the server wants one.

const NAME = "pagewire-api-key";

export class KeyAsker {
  #dialog = document.getElementById("key-dialog");
  #field = document.getElementById("key");
  #reason = document.getElementById("key-reason");
  #button = document.getElementById("key-button");
  #answer = null;

  /** @param {() => void} onChanged called after the key was changed through the button */
  constructor(onChanged) {
    this.#button.hidden = !this.key;
    this.#button.addEventListener("click", async () => {
      if (await this.ask("The key of this tab. An empty one is forgotten.")) onChanged();
    });
    document.getElementById("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#keep(this.#field.value.trim());
      this.#answer = true;
      this.#dialog.close();
    });
    document.getElementById("key-cancel").addEventListener("click", () => this.#dialog.close());
  }

  /** "": none. */
  get key() {
    return sessionStorage.getItem(NAME) ?? "";
  }

  /**
   * Ask for a key.
   * @param {string} reason
   * @returns {Promise<boolean>} false: the asked one gave up
   */
  async ask(reason) {
    this.#button.hidden = false;
    this.#reason.textContent = reason;
    this.#field.value = "";
    this.#answer = false;
    const closed = new Promise((resolve) => {
      this.#dialog.addEventListener("close", resolve, { once: true });
    });
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#field.focus();
    await closed;
    return this.#answer;
  }

  /**
   * Call with the key, and again with another one as long as the server refuses it.
   * @template T
   * @param {(key: string) => Promise<T>} call
   */
  async with(call) {
    for (;;) {
      const key = this.key;
      try {
        return await call(key);
      } catch (error) {
        if (error.status !== 401) throw error;
        const reason = key
          ? "The server does not know this key. Try another one."
          : "This server asks for a key. It is kept for this tab only, and forgotten with it.";
        if (!(await this.ask(reason))) throw error;
      }
    }
  }

  #keep(key) {
    if (key) sessionStorage.setItem(NAME, key);
    else sessionStorage.removeItem(NAME);
  }
}
