// The chat: each message is answered twice, with speculation and without, under one seed.

import { Answer, Gauges } from "./answer.js";
import { Failure, model, stream } from "./api.js";
import { sampling, speculation } from "./settings.js";

const byId = (id) => document.getElementById(id);
const sides = ["with", "without"].map((id) => ({
  id,
  log: byId(id).querySelector(".log"),
  gauges: new Gauges(byId(id).querySelector(".gauges")),
}));
const prompt = byId("prompt");
const verdict = byId("verdict");
let turns = [];
let served;
let running; // the AbortController of the answers that are under way

async function learnModel() {
  try {
    served = await model();
    byId("model").textContent = served;
  } catch (error) {
    served = undefined;
    byId("model").textContent = error.message;
  }
}

function bubble(log, role, text) {
  const box = document.createElement("div");
  box.className = role;
  box.textContent = text;
  log.append(box);
  box.scrollIntoView?.({ block: "nearest" });
  return box;
}

async function one(side, body, signal) {
  const box = bubble(side.log, "assistant", "");
  side.gauges.clear();
  side.log.setAttribute("aria-busy", "true"); // read out once it is whole, not token by token
  const answer = new Answer(box, side.gauges);
  try {
    for await (const chunk of stream(body, signal)) {
      const follows = side.log.scrollTop + side.log.clientHeight >= side.log.scrollHeight - 40;
      answer.take(chunk);
      if (follows) side.log.scrollTop = side.log.scrollHeight;
    }
    answer.whole = true;
  } catch (error) {
    if (!(error instanceof Failure) && error.name !== "AbortError") throw error;
    answer.failure = error.name === "AbortError" ? "stopped" : error.message;
    const told = bubble(side.log, "failure", answer.failure);
    if (error.name !== "AbortError") told.setAttribute("role", "alert");
  } finally {
    side.log.removeAttribute("aria-busy");
  }
  return answer;
}

function firstDifference(one, other) {
  let place = 0;
  while (place < one.length && one[place] === other[place]) place += 1;
  return place;
}

function judge(fast, plain, strategy, seed) {
  if (!fast.whole || !plain.whole) return "One side has no whole answer: nothing to compare.";
  const both = [fast, plain].map((answer) => answer.thought + answer.text);
  let said;
  if (both[0] === both[1]) {
    said = "The texts agree.";
  } else {
    const allowed = !["deterministic", undefined].includes(strategy);
    said = `The texts differ from character ${firstDifference(...both) + 1} on`;
    said += allowed ? `, as the strategy ${strategy} permits.` : ".";
  }
  if (fast.speed && plain.speed) {
    const ratio = fast.speed / plain.speed;
    said += ` With speculation ${fast.speed.toFixed(1)} tokens/s, without ${plain.speed.toFixed(1)}: ${ratio.toFixed(2)} times`;
    said += byId("order").value === "together" ? ", both at once on the same machines." : ", one after the other.";
  }
  return `${said} Seed ${seed}.`;
}

async function ask(text) {
  let shared;
  try {
    shared = sampling();
  } catch (error) {
    verdict.textContent = error.message;
    return;
  }
  if (served === undefined) await learnModel();
  if (served === undefined) {
    verdict.textContent = byId("model").textContent;
    return;
  }
  const block = speculation();
  const system = byId("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns, { role: "user", content: text }];
  const common = { model: served, messages, ...shared, stream_options: { include_usage: true } };
  const bodies = [
    { ...common, speculative: { ...block, report_rounds: true } },
    { ...common, speculative: { enabled: false, report_rounds: true } },
  ];
  running = new AbortController();
  byId("send").disabled = true;
  byId("stop").disabled = false;
  verdict.textContent = "Answering…";
  for (const side of sides) bubble(side.log, "user", text);
  try {
    const start = (place) => one(sides[place], bodies[place], running.signal);
    const answers =
      byId("order").value === "together" ? await Promise.all([start(0), start(1)]) : [await start(0), await start(1)];
    verdict.textContent = judge(...answers, block.strategy, shared.seed);
    const kept = answers.find((answer) => answer.whole) ?? answers.find((answer) => answer.failure === "stopped");
    if (kept) turns = [...turns, { role: "user", content: text }, { role: "assistant", content: kept.text }];
    else prompt.value ||= text; // it was never answered: to be sent again
  } finally {
    running = undefined;
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  ask(text);
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("stop").addEventListener("click", () => {
  running?.abort();
  prompt.focus();
});
byId("fresh").addEventListener("click", () => {
  running?.abort();
  turns = [];
  for (const side of sides) {
    side.log.replaceChildren();
    side.gauges.clear();
  }
  verdict.textContent = "A new conversation.";
  prompt.focus();
});
document.addEventListener("key", learnModel);
learnModel();
