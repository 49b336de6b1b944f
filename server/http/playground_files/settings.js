// The sliders and fields. Only what has been changed is sent: the server's defaults are its own matter.

const STRATEGIES = ["deterministic", "probabilistic", "threshold", "greedy"];

// name, label, and for a slider: least, most, step, where it stands at first
const SPECULATION = [
  { name: "draft_model", label: "Drafter", text: "auto" },
  { name: "adaptive_speculation", label: "Let γ and N adapt", on: true },
  { name: "draft_tokens", label: "γ, draft tokens", range: [1, 32, 1, 5] },
  { name: "max_speculation_depth", label: "Most γ may adapt to", range: [1, 32, 1, 32] },
  { name: "num_candidates", label: "N, candidates", range: [1, 8, 1, 1] },
  { name: "candidate_temperature", label: "Candidates' temperature", range: [0, 2, 0.05, 1] },
  { name: "candidate_top_p", label: "Candidates' top_p", range: [0.05, 1, 0.05, 1] },
  { name: "strategy", label: "Strategy", options: STRATEGIES },
  { name: "acceptance_threshold", label: "Threshold", range: [0, 1, 0.01, 0.1] },
];
const SAMPLING = [
  { name: "temperature", label: "Temperature", range: [0, 2, 0.05, 1] },
  { name: "top_p", label: "top_p", range: [0, 1, 0.01, 1] },
  { name: "top_k", label: "top_k (0: off)", range: [0, 200, 1, 0] },
  { name: "min_p", label: "min_p", range: [0, 1, 0.01, 0] },
  { name: "repetition_penalty", label: "Repetition penalty", range: [0.5, 2, 0.05, 1] },
  { name: "presence_penalty", label: "Presence penalty", range: [-2, 2, 0.1, 0] },
  { name: "frequency_penalty", label: "Frequency penalty", range: [-2, 2, 0.1, 0] },
  { name: "max_tokens", label: "Most tokens", range: [1, 2048, 1, 256], always: true },
  { name: "seed", label: "Seed (empty: drawn)", text: "" },
];

const changed = new Set();

function control(setting) {
  let input;
  if (setting.options) {
    input = document.createElement("select");
    for (const option of setting.options) input.add(new Option(option, option));
  } else {
    input = document.createElement("input");
    if (setting.range) {
      input.type = "range";
      [input.min, input.max, input.step] = setting.range.map(String);
      input.defaultValue = String(setting.range[3]);
    } else if ("on" in setting) {
      input.type = "checkbox";
      input.defaultChecked = setting.on;
    } else {
      input.type = "text";
      input.defaultValue = setting.text;
      input.spellcheck = false;
      input.autocomplete = "off";
    }
  }
  input.id = `set-${setting.name}`;
  return input;
}

function add(fieldset, setting) {
  const row = document.createElement("div");
  row.className = "setting";
  const label = document.createElement("label");
  const input = control(setting);
  label.htmlFor = input.id;
  label.textContent = setting.label;
  row.append(label, input);
  if (setting.range) {
    const shown = document.createElement("output");
    shown.htmlFor = input.id;
    shown.textContent = input.value;
    input.addEventListener("input", () => (shown.textContent = input.value));
    input.form?.addEventListener("reset", () => (shown.textContent = input.defaultValue));
    row.append(shown);
  }
  input.addEventListener("input", () => {
    changed.add(setting.name);
    row.classList.add("changed");
  });
  fieldset.append(row);
}

const form = document.getElementById("settings");
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => {
  changed.clear();
  for (const row of form.querySelectorAll(".setting")) {
    row.classList.remove("changed");
    const shown = row.querySelector("output");
    if (shown) shown.textContent = row.querySelector("input").defaultValue;
  }
});
for (const setting of SPECULATION) add(document.getElementById("speculation"), setting);
for (const setting of SAMPLING) add(document.getElementById("sampling"), setting);

function valueOf(setting) {
  const input = document.getElementById(`set-${setting.name}`);
  if ("on" in setting) return input.checked;
  if (setting.range) return Number(input.value);
  return input.value.trim() === "" ? undefined : input.value.trim();
}

function chosen(settings) {
  const values = {};
  for (const setting of settings) {
    const value = setting.always || changed.has(setting.name) ? valueOf(setting) : undefined;
    if (value !== undefined) values[setting.name] = value;
  }
  return values;
}

/** The request's `speculative` block, as far as it was changed. */
export function speculation() {
  return chosen(SPECULATION);
}

/** Fields of the request; a seed is always there, so that both sides draw alike. Throws Error on one that is none. */
export function sampling() {
  const values = chosen(SAMPLING);
  if (values.seed === undefined) {
    values.seed = crypto.getRandomValues(new Uint32Array(1))[0];
  } else {
    const seed = Number(values.seed);
    if (!Number.isSafeInteger(seed)) throw new Error("the seed must be a whole number below 2^53");
    values.seed = seed;
  }
  return values;
}
