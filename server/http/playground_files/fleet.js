// The fleet's state, asked for every two seconds while it is looked at: /ready and /metrics, which need no key.

import { metrics, ready } from "./api.js";

const EVERY = 2000;
const BREAKER = ["closed", "half open", "open"];
const view = document.getElementById("view-fleet");
const state = document.getElementById("fleet-state");
let timer;

function row(cells, className) {
  const made = document.createElement("tr");
  if (className) made.className = className;
  cells.forEach((text, place) => {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    cell.textContent = text;
    made.append(cell);
  });
  return made;
}

function workers(samples, detail) {
  const found = new Map();
  for (const { name, labels, value } of samples) {
    if (!labels.worker || !labels.role) continue; // of a worker's vocabulary, not of its calls
    const key = `${labels.role} ${labels.worker}`;
    const worker = found.get(key) ?? { role: labels.role, url: labels.worker, failures: 0 };
    if (name === "tandem_worker_up") worker.up = value === 1;
    if (name === "tandem_breaker_state") worker.breaker = BREAKER[value];
    if (name === "tandem_worker_streams") worker.streams = value;
    if (name === "tandem_worker_failures_total") worker.failures += value;
    found.set(key, worker);
  }
  return [...found.entries()].map(([key, worker]) => {
    const said = detail.split("; ").find((part) => part.startsWith(`${key}: `)) ?? "";
    const cells = [worker.role, worker.url, worker.up ? "up" : "down", worker.breaker, worker.streams, worker.failures];
    return row([...cells.map((cell) => String(cell ?? "–")), said.slice(key.length + 2)], worker.up ? "" : "bad");
  });
}

function pairs(samples) {
  const found = new Map();
  const of = (pair) => found.get(pair) ?? found.set(pair, { drafted: 0, accepted: 0 }).get(pair);
  for (const { name, labels, value } of samples) {
    if (name === "tandem_spec_decode_num_draft_tokens_total") of(labels.pair).drafted += value;
    if (name === "tandem_spec_decode_num_accepted_tokens_total") of(labels.pair).accepted += value;
    if (name === "tandem_estimated_speedup") of(labels.pair).speedup = value;
  }
  return [...found.entries()].map(([pair, { drafted, accepted, speedup }]) =>
    row([
      pair,
      String(drafted),
      String(accepted),
      drafted ? `${Math.round((100 * accepted) / drafted)}%` : "–",
      speedup === undefined ? "not measured yet" : speedup.toFixed(2),
    ]),
  );
}

async function look() {
  clearTimeout(timer);
  if (view.hidden) return;
  try {
    const [told, samples] = await Promise.all([ready(), metrics()]);
    const text = told.ready ? "Ready: requests can be answered." : `Not ready: ${told.detail}`;
    if (state.textContent !== text) state.textContent = text; // said once, not every two seconds
    state.className = told.ready ? "good" : "bad";
    document.getElementById("workers").replaceChildren(...workers(samples, told.detail));
    document.getElementById("pairs").replaceChildren(...pairs(samples));
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
  timer = setTimeout(look, EVERY);
}

document.addEventListener("view", look);
look();
