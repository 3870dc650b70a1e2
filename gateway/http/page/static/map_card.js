// One box of the map: a card whose parts stay while their figures change.

import { edgeText, rowsOf } from "/static/map_figures.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 22;

export class Card {
  element = document.createElement("article");
  #title = document.createElement("h3");
  #state = document.createElement("span");
  #mark = document.createElement("strong");
  #edge = document.createElement("p");
  #figures = document.createElement("dl");
  #line = document.createElementNS(SVG, "polyline");
  #values = new Map();

  constructor(id) {
    this.element.className = "box";
    this.#title.textContent = id;
    this.#mark.textContent = "limits the others";
    this.#edge.className = "hint";
    const head = document.createElement("header");
    head.append(this.#title, this.#state, this.#mark);
    const chart = document.createElementNS(SVG, "svg");
    chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    chart.setAttribute("preserveAspectRatio", "none");
    chart.setAttribute("aria-hidden", "true");
    chart.append(this.#line);
    this.element.append(head, this.#edge, chart, this.#figures);
  }

  /**
   * @param {object} box of GET /v1/map
   * @param {object|undefined} edge that leads to it
   * @param {boolean} isLimiting
   */
  show(box, edge, isLimiting) {
    this.element.dataset.kind = box.kind;
    this.element.dataset.state = box.state;
    this.element.classList.toggle("limiting", isLimiting);
    this.element.setAttribute("aria-label", `${box.id}, ${box.state}`);
    this.element.title = box.address ?? "";
    this.#state.textContent = box.state === "ready" ? "" : box.state;
    this.#mark.hidden = !isLimiting;
    this.#edge.textContent = edgeText(edge);
    this.#showRows(rowsOf(box));
    this.#line.setAttribute("points", points(box.history));
  }

  #showRows(rows) {
    for (const [label, text] of rows) {
      if (!this.#values.has(label)) this.#values.set(label, this.#addRow(label));
      const value = this.#values.get(label);
      if (value.textContent !== text) value.textContent = text;
    }
    const labels = new Set(rows.map(([label]) => label));
    for (const [label, value] of this.#values) value.parentElement.hidden = !labels.has(label);
  }

  #addRow(label) {
    const row = document.createElement("div");
    const name = document.createElement("dt");
    const value = document.createElement("dd");
    name.textContent = label;
    row.append(name, value);
    this.#figures.append(row);
    return value;
  }
}

/** The last two minutes as a line; its highest point is the highest rate. */
function points(history) {
  const top = Math.max(...history, Number.MIN_VALUE);
  const step = WIDTH / Math.max(1, history.length - 1);
  return history
    .map((rate, place) => `${(place * step).toFixed(1)},${(HEIGHT - 1 - (rate / top) * (HEIGHT - 2)).toFixed(1)}`)
    .join(" ");
}
