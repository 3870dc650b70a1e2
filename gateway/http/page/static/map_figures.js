// The map's figures as short texts, by kind of box. What is not known is left out.

const LINES = {
  gateway: [
    ["Requests", "live_requests"],
    ["New requests", "requests_per_s"],
    ["Tokens", "output_tokens_per_s"],
    ["Slow clients", "blocked_requests"],
    ["Unread output", "unread_bytes"],
  ],
  tokenizer: [
    ["Calls under way", "calls_in_flight"],
    ["Calls", "calls_per_s"],
    ["A call takes", "call_ms"],
    ["Threads busy", "busy_share"],
  ],
  scheduler: [
    ["Running", "running", "max_num_seqs"],
    ["Waiting", "waiting"],
    ["KV cache held", "kv_usage"],
    ["Cache hits", "cache_hit_rate"],
    ["Preemptions", "preemptions_per_s"],
    ["Tokens", "generation_tokens_per_s"],
    ["Steps", "steps_per_s"],
    ["Schedule", "schedule_ms"],
    ["Way to the worker", "wire_ms"],
  ],
  worker: [
    ["Idle", "idle_share"],
    ["Lacks steps", "starved_share"],
    ["A step takes", "busy_ms"],
    ["Waits before", "wait_ms"],
    ["Prepare", "prepare_ms"],
    ["Forward", "forward_ms"],
    ["Sample", "sample_ms"],
  ],
};
const PROCESS = [
  ["Cores used", "cpu_cores"],
  ["Cores lacked", "waiting_threads"],
  ["Loop lag", "loop_lag_mean_ms"],
  ["Memory", "rss_bytes"],
];

/** What a box does, and what its process uses: [label, text] pairs. */
export function rowsOf(box) {
  const { figures, process, kind } = box;
  const rows = (LINES[kind] ?? []).map(([label, name, of]) => {
    const text = figureText(name, figures[name]);
    const total = of && text ? figureText(of, figures[of]) : "";
    return [label, total ? `${text} of ${total}` : text];
  });
  for (const [label, name] of PROCESS) rows.push([label, figureText(name, process?.[name])]);
  return rows.filter(([, text]) => text);
}

/** What an edge carries; "": not known. */
export function edgeText(edge) {
  const parts = [];
  if (edge && edge.messages_per_s !== null) parts.push(`${short(edge.messages_per_s)} msg/s`);
  if (edge && edge.round_trip_ms !== null) parts.push(`${short(edge.round_trip_ms)} ms`);
  return parts.join(", ");
}

function figureText(name, value) {
  if (value === null || value === undefined) return "";
  if (name.endsWith("_bytes")) return bytes(value);
  if (name.endsWith("_ms")) return value < 1000 ? `${short(value)} ms` : `${short(value / 1000)} s`;
  if (name.endsWith("_per_s")) return `${short(value)}/s`;
  if (/_(share|rate|usage)$/.test(name)) return `${Math.round(100 * value)} %`;
  return short(value);
}

function short(value) {
  if (Number.isInteger(value) || value >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 1 ? 1 : 2);
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${value < 10 && place ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}
