// Where the time of an answer went: bars that are drawn once somebody wants to see them.

import { textElement } from "/static/answer.js";
import { loadTrace } from "/static/api.js";
import { seconds } from "/static/timings.js";

const SVG = "http://www.w3.org/2000/svg";
const SCALE = 1000;
const MIN_WIDTH = 2;

/**
 * An element that loads and draws the trace when it is opened.
 * @param {string} requestId
 * @param {import("/static/key.js").KeyAsker} keys
 */
export function traceOf(requestId, keys) {
  const details = document.createElement("details");
  details.className = "trace";
  const place = document.createElement("div");
  details.append(textElement("summary", "", "Trace"), place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.childElementCount) return;
    try {
      const trace = await keys.with((key) => loadTrace(requestId, key));
      place.replaceChildren(...draw(trace));
      details.scrollIntoView({ block: "nearest" });
    } catch (error) {
      // Not kept is no answer for good: the next opening asks again.
      place.textContent = String(error);
    }
  });
  return details;
}

function draw(trace) {
  const list = document.createElement("ol");
  list.className = "bars";
  list.setAttribute("aria-label", "Timeline");
  list.append(...rows(trace).map((row) => bar(row, trace)));
  return [list, sums(trace)];
}

/** The gateway's own parts, and the output that ended last, in the order of time. */
function rows({ spans, outputs, boxes }) {
  const all = spans.map(({ part, start_s, duration_s }) => ({
    label: `${boxes[part]}: ${part}`,
    start_s,
    duration_s,
    parts: { [part]: duration_s },
  }));
  for (const segment of outputs.find((output) => output.is_last)?.segments ?? []) {
    all.push({ ...segment, label: label(segment, boxes) });
  }
  return all.sort((a, b) => a.start_s - b.start_s);
}

function label({ kind, steps, tokens }, boxes) {
  if (kind === "prefill") return `worker: prefill, ${tokens} tokens`;
  if (kind === "decode") return `worker: decode, ${steps} steps`;
  return `${boxes[kind]}: ${kind}`;
}

function bar({ label, start_s, duration_s, parts }, { duration_s: total_s, boxes }) {
  const item = document.createElement("li");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${SCALE} 10`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  let at = start_s;
  for (const [part, part_s] of Object.entries(parts)) {
    svg.append(rect(at / total_s, part_s / total_s, boxes[part], `${part}: ${time(part_s)}`));
    at += part_s;
  }
  item.append(textElement("span", "", label), svg, textElement("span", "", time(duration_s)));
  return item;
}

function rect(begin, width, box, title) {
  const element = document.createElementNS(SVG, "rect");
  const wide = Math.max(MIN_WIDTH, width * SCALE);
  element.setAttribute("x", Math.min(begin * SCALE, SCALE - wide).toFixed(2));
  element.setAttribute("width", wide.toFixed(2));
  element.setAttribute("height", "10");
  element.setAttribute("class", `box-${box}`);
  const text = document.createElementNS(SVG, "title");
  text.textContent = title;
  element.append(text);
  return element;
}

/** What the parts are together, the longest first. */
function sums({ parts, boxes, duration_s }) {
  const list = document.createElement("ul");
  list.className = "sums";
  list.setAttribute("aria-label", "Parts");
  const ordered = Object.entries(parts).sort(([, a], [, b]) => b - a);
  for (const [part, part_s] of ordered) {
    const share = `${Math.round((100 * part_s) / duration_s)} %`;
    const item = textElement("li", `box-${boxes[part]}`, `${part} ${time(part_s)} (${share})`);
    list.append(item);
  }
  return list;
}

function time(duration_s) {
  return duration_s < 0.001 ? `${Math.round(duration_s * 1e6)} µs` : seconds(duration_s * 1000);
}
