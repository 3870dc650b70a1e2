// The map's edges, drawn behind its cards: dashes move as often as messages do.

const SVG = "http://www.w3.org/2000/svg";
const SLOWEST_S = 8;
const QUICKEST_S = 0.4;

export class Edges {
  #svg;
  #paths = new Map();

  constructor(svg) {
    this.#svg = svg;
  }

  /**
   * @param {object[]} edges of GET /v1/map
   * @param {(id: string) => Element|undefined} elementOf the card of a box
   */
  show(edges, elementOf) {
    const frame = this.#svg.getBoundingClientRect();
    const left = new Set(this.#paths.keys());
    for (const edge of edges) {
      const from = elementOf(edge.from);
      const to = elementOf(edge.to);
      if (!from || !to) continue;
      const id = `${edge.from}>${edge.to}`;
      left.delete(id);
      if (!this.#paths.has(id)) this.#paths.set(id, this.#add());
      const path = this.#paths.get(id);
      path.setAttribute("d", curve(from.getBoundingClientRect(), to.getBoundingClientRect(), frame));
      move(path, edge.messages_per_s ?? 0);
    }
    for (const id of left) {
      this.#paths.get(id).remove();
      this.#paths.delete(id);
    }
  }

  #add() {
    const path = document.createElementNS(SVG, "path");
    this.#svg.append(path);
    return path;
  }
}

/** Between the facing sides of two cards, which stand beside or below each other. */
function curve(from, to, frame) {
  const isBeside = to.left >= from.right;
  const [x1, y1] = isBeside
    ? [from.right - frame.left, from.top + 24 - frame.top]
    : [from.left + from.width / 2 - frame.left, from.bottom - frame.top];
  const [x2, y2] = isBeside
    ? [to.left - frame.left, to.top + 24 - frame.top]
    : [to.left + to.width / 2 - frame.left, to.top - frame.top];
  const [dx, dy] = isBeside ? [(x2 - x1) / 2, 0] : [0, (y2 - y1) / 2];
  return `M${x1},${y1} C${x1 + dx},${y1 + dy} ${x2 - dx},${y2 - dy} ${x2},${y2}`;
}

function move(path, messagesPerS) {
  path.classList.toggle("moving", messagesPerS > 0);
  const seconds = Math.min(SLOWEST_S, Math.max(QUICKEST_S, 8 / (1 + messagesPerS)));
  // To the tenth: a change of the time makes the dashes jump.
  path.style.setProperty("--period", `${seconds.toFixed(1)}s`);
}
