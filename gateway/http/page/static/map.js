// The Map tab: boxes with live figures, edges, and the line that says which box limits the others.
// It asks once a second while it is shown, and never while it is not.

import { getMap } from "/static/api.js";
import { Card } from "/static/map_card.js";
import { Edges } from "/static/map_edges.js";

const INTERVAL_MS = 1000;
const CALM = new Set(["healthy", "idle", "watching"]);

export class MapView {
  #root = document.getElementById("map");
  #boxes = document.getElementById("map-boxes");
  #edges = new Edges(document.getElementById("map-edges"));
  #verdict = document.getElementById("map-verdict");
  #summary = document.getElementById("map-summary");
  #tries = document.getElementById("map-tries");
  #clients = document.getElementById("map-clients");
  #cards = new Map();
  #timer = null;
  #isAsking = false;
  #keys;

  /** @param {{with: Function}} keys see KeyAsker */
  constructor(keys) {
    this.#keys = keys;
    document.addEventListener("visibilitychange", () => this.#ask());
  }

  /** Show the map, or hide it. */
  set isShown(isShown) {
    this.#root.hidden = !isShown;
    this.#ask();
  }

  get #isWatched() {
    return !this.#root.hidden && document.visibilityState === "visible";
  }

  async #ask() {
    if (this.#isAsking || !this.#isWatched) return;
    clearTimeout(this.#timer);
    this.#isAsking = true;
    try {
      this.#show(await this.#keys.with(getMap));
    } catch (error) {
      this.#showVerdict("no map", String(error), true);
      // Whoever gave no key is not asked again each second.
      if (error.status === 401) return;
    } finally {
      this.#isAsking = false;
    }
    this.#timer = setTimeout(() => this.#ask(), INTERVAL_MS);
  }

  #show({ diagnosis, boxes, edges }) {
    const where = diagnosis.box ? ` at ${diagnosis.box}` : "";
    this.#showVerdict(diagnosis.verdict + where, diagnosis.summary, !CALM.has(diagnosis.verdict));
    this.#tries.replaceChildren(...diagnosis.try.map(listItem));
    this.#clients.classList.toggle("limiting", diagnosis.box === "clients");
    const edgeTo = new Map(edges.map((edge) => [edge.to, edge]));
    const left = new Set(this.#cards.keys());
    for (const box of boxes) {
      left.delete(box.id);
      if (!this.#cards.has(box.id)) this.#cards.set(box.id, new Card(box.id));
      this.#cards.get(box.id).show(box, edgeTo.get(box.id), box.id === diagnosis.box);
    }
    for (const id of left) {
      this.#cards.get(id).element.remove();
      this.#cards.delete(id);
    }
    this.#place(boxes);
    this.#edges.show(edges, (id) =>
      id === "clients" ? this.#clients : this.#cards.get(id)?.element,
    );
  }

  /** A column of clients, gateway and tokenizers, and one for each replica. */
  #place(boxes) {
    const wanted = boxes.map((box) => this.#cards.get(box.id).element);
    const shown = [...this.#boxes.querySelectorAll(".box")];
    if (wanted.length === shown.length && wanted.every((card, place) => card === shown[place])) return;
    const front = column("front");
    front.append(this.#clients);
    const columns = new Map([[null, front]]);
    for (const box of boxes) {
      if (!columns.has(box.replica)) columns.set(box.replica, column(`replica ${box.replica}`));
      columns.get(box.replica).append(this.#cards.get(box.id).element);
    }
    this.#boxes.replaceChildren(...columns.values());
  }

  #showVerdict(verdict, summary, isLoud) {
    // The verdict alone is announced: its figures change each second.
    if (this.#verdict.textContent !== verdict) this.#verdict.textContent = verdict;
    this.#summary.textContent = summary;
    this.#root.classList.toggle("loud", isLoud);
  }
}

function column(name) {
  const element = document.createElement("section");
  element.className = "column";
  element.setAttribute("aria-label", name);
  return element;
}

function listItem(text) {
  const item = document.createElement("li");
  item.textContent = text;
  return item;
}
