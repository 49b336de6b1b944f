// One side's answer: its text, coloured by who made each token, and its figures.

const TITLES = {
  draft: "accepted draft",
  target: "the target's own, in place of a rejected draft token",
  bonus: "the target's own, after a draft that it accepted whole",
  plain: "nothing was drafted",
};
const GAUGES = [
  { name: "speed", label: "Tokens/s", most: 1 },
  { name: "acceptance", label: "Acceptance", most: 1 },
  { name: "gamma", label: "γ", most: 32 },
  { name: "first", label: "First token" },
  { name: "tokens", label: "Tokens" },
];

const sides = []; // the gauges of both

export class Gauges {
  constructor(list) {
    sides.push(this);
    this.speed = 0;
    this.parts = {};
    for (const gauge of GAUGES) {
      const row = document.createElement("div");
      const label = document.createElement("dt");
      label.textContent = gauge.label;
      const shown = document.createElement("dd");
      const text = document.createElement("span");
      text.className = "figure";
      text.textContent = "–";
      shown.append(text);
      if (gauge.most) {
        const bar = document.createElement("meter");
        bar.max = gauge.most;
        bar.value = 0;
        bar.setAttribute("aria-label", gauge.label);
        shown.append(bar);
        this.parts[gauge.name] = { text, bar };
      } else {
        this.parts[gauge.name] = { text };
      }
      row.dataset.gauge = gauge.name;
      row.append(label, shown);
      list.append(row);
    }
  }

  set(name, text, value) {
    const { text: shown, bar } = this.parts[name];
    shown.textContent = text;
    if (!bar || value === undefined) return;
    if (name === "speed") this.#compare(value);
    bar.value = value;
  }

  /** Both sides' speeds have one scale. */
  #compare(speed) {
    this.speed = speed;
    const most = Math.max(1, ...sides.map((gauges) => gauges.speed)) * 1.1;
    for (const gauges of sides) gauges.parts.speed.bar.max = most;
  }

  clear() {
    for (const name of Object.keys(this.parts)) this.set(name, "–", 0);
  }
}

/** Counts what chunks say and writes their text into `box`, as text: never as markup. */
export class Answer {
  constructor(box, gauges) {
    this.box = box;
    this.gauges = gauges;
    this.asked = performance.now();
    this.first = undefined;
    this.last = undefined;
    this.firstTokens = 0;
    this.tokens = 0;
    this.drafted = 0;
    this.accepted = 0;
    this.drafts = 0;
    this.text = "";
    this.thought = "";
    this.finish = null;
  }

  take(chunk) {
    const rounds = chunk.tandem?.rounds ?? [];
    for (const made of rounds) if (made.tokens) this.#count(made);
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices[0];
    if (choice) {
      const thought = choice.delta.reasoning_content ?? "";
      this.text += choice.delta.content ?? "";
      this.thought += thought;
      this.finish = choice.finish_reason ?? this.finish;
      for (const made of rounds) {
        for (const piece of made.pieces) this.#write(piece.text, piece.origin, Boolean(thought));
      }
    }
    this.#show();
  }

  get speed() {
    if (this.first === undefined || this.last <= this.first) return undefined;
    return ((this.tokens - this.firstTokens) * 1000) / (this.last - this.first);
  }

  #count(made) {
    const now = performance.now();
    if (this.first === undefined) {
      this.first = now;
      this.firstTokens = made.tokens.length;
    }
    this.last = now;
    this.tokens += made.tokens.length;
    this.drafted += made.draft_tokens;
    this.accepted += made.tokens.filter((token) => token.origin === "draft").length;
    this.gamma = made.draft_tokens;
    if (made.draft_tokens) this.drafts += 1;
  }

  #write(text, origin, thought) {
    const kind = thought ? `${origin} thought` : origin;
    const last = this.box.lastElementChild;
    if (last?.className === kind) {
      last.firstChild.appendData(text);
      return;
    }
    const span = document.createElement("span");
    span.className = kind;
    span.title = TITLES[origin] ?? "";
    span.append(document.createTextNode(text));
    this.box.append(span);
  }

  #show() {
    const { gauges } = this;
    if (this.speed !== undefined) gauges.set("speed", this.speed.toFixed(1), this.speed);
    if (this.drafted) {
      const rate = this.accepted / this.drafted;
      gauges.set("acceptance", `${Math.round(100 * rate)}% (${this.accepted} of ${this.drafted})`, rate);
    }
    if (this.gamma !== undefined) {
      const mean = this.drafts ? ` (mean ${(this.drafted / this.drafts).toFixed(1)})` : "";
      gauges.set("gamma", `${this.gamma}${mean}`, this.gamma);
    }
    if (this.first !== undefined) gauges.set("first", `${((this.first - this.asked) / 1000).toFixed(2)} s`);
    gauges.set("tokens", String(this.tokens));
  }
}
