// Vercel's AI SDK against the server in TANDEM_URL: a tool is called, its result goes back, a conversation goes on.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "tandem",
  baseURL: `${process.env.TANDEM_URL}/v1`,
  apiKey: "unused",
  includeUsage: true,
  supportsStructuredOutputs: true,
  // Random text ends sooner: the stop token is the likelier.
  transformRequestBody: (body) => ({ ...body, seed: 3, logit_bias: { 2: 8 } }),
});
const model = provider("tiny");
const small = z.number().int().min(0).max(99);
const calls = [];
const tools = {
  Sum: tool({
    description: "Adds",
    inputSchema: z.object({ a: small, b: small }),
    execute: async ({ a, b }) => {
      calls.push([a, b]);
      return { sum: a + b };
    },
  }),
};
const question = { role: "user", content: "What is 1 + 2?" };
const options = { model, maxRetries: 0, maxOutputTokens: 150 };
const calling = {
  ...options,
  tools,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
};

const whole = await generateText({ ...calling, messages: [question] });
const history = [question, ...whole.response.messages, { role: "user", content: "And again?" }];
const streamed = streamText({ ...calling, messages: history, onError: ({ error }) => { throw error; } });
for await (const _ of streamed.textStream);
const again = (await streamed.response).messages;
const structured = await generateText({
  ...options,
  messages: [...history, ...again, { role: "user", content: "As JSON?" }],
  output: Output.object({ schema: z.object({ a: small, b: small }) }),
});
console.log(
  JSON.stringify({
    calls,
    steps: [whole.steps.length, (await streamed.steps).length],
    roles: [...whole.response.messages, ...again].map((message) => message.role),
    usage: (await streamed.totalUsage).outputTokens,
    structured: structured.output,
  }),
);
