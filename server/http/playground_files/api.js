// The gateway's API: who may ask, what it serves, answers as they stream.

const KEY = "tandem-key"; // of the session's storage, which ends with the tab
const field = document.getElementById("key");
field.value = sessionStorage.getItem(KEY) ?? "";
field.addEventListener("change", () => {
  sessionStorage.setItem(KEY, field.value);
  document.dispatchEvent(new CustomEvent("key"));
});

function headers() {
  const given = { "content-type": "application/json" };
  if (field.value) given.authorization = `Bearer ${field.value}`;
  return given;
}

/** What went wrong, in words, with the HTTP status (0: no answer at all). */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function refusal(answer) {
  let message = `${answer.status} ${answer.statusText}`;
  try {
    const { error } = await answer.json();
    message = error.param && !error.message.includes(error.param) ? `${error.message} [${error.param}]` : error.message;
  } catch {
    // not the API's form: the status has to do
  }
  if (answer.status === 401) {
    field.focus();
    message += " Type a key in at the top of the page.";
  }
  return new Failure(message, answer.status);
}

async function fetched(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("the server does not answer");
  }
}

/** The name of the served model. */
export async function model() {
  const answer = await fetched("/v1/models", { headers: headers() });
  if (!answer.ok) throw await refusal(answer);
  return (await answer.json()).data[0].id;
}

/** The chunks of a chat answer. Throws Failure, also in the middle; AbortError if `signal` ends it. */
export async function* stream(body, signal) {
  const answer = await fetched("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("the connection broke before the answer was complete");
    }
    if (read.done) throw new Failure("the server ended the answer before it was complete");
    const events = (held + read.value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment that keeps the connection alive
      if (event === "data: [DONE]") return;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Failure(chunk.error.message);
      yield chunk;
    }
  }
}

/** What /ready says: whether requests can be served, and the details. Needs no key. */
export async function ready() {
  const answer = await fetched("/ready", {});
  return await answer.json();
}

/** The samples of /metrics: [{name, labels, value}]. Needs no key. */
export async function metrics() {
  const answer = await fetched("/metrics", {});
  if (!answer.ok) throw await refusal(answer);
  const samples = [];
  for (const line of (await answer.text()).split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
    }
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}
