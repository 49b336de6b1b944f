// Two tools and three turns through Vercel's AI SDK, for each kind of tool choice: what was called, and what was said.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { turns, system } = JSON.parse(process.env.LOOP);
const provider = createOpenAICompatible({
  name: "tandem",
  baseURL: `${process.env.TANDEM_URL}/v1`,
  apiKey: "unused",
  transformRequestBody: (body) => ({ ...body, parallel_tool_calls: false, ...JSON.parse(process.env.EXTRA) }),
});
const small = z.number().int().min(0).max(99);
const found = {};
for (const kind of ["required", "named", "auto"]) {
  const called = [];
  const said = [];
  const tools = {
    get_weather: tool({
      description: "The weather in a city",
      inputSchema: z.object({ city: z.string().max(20) }),
      execute: async ({ city }) => {
        called.push(["get_weather", city]);
        return `It is 18 degrees in ${city}.`;
      },
    }),
    add: tool({
      description: "Adds two numbers",
      inputSchema: z.object({ a: small, b: small }),
      execute: async ({ a, b }) => {
        called.push(["add", a, b]);
        return a + b;
      },
    }),
  };
  const messages = [];
  for (const [name, question] of turns) {
    messages.push({ role: "user", content: question });
    const options = {
      model: provider("tiny"),
      system,
      messages,
      tools,
      maxRetries: 0,
      maxOutputTokens: 48,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({
        toolChoice: stepNumber > 0 ? "none" : kind === "named" ? { type: "tool", toolName: name } : kind,
      }),
    };
    // The second turn is streamed.
    let answer;
    if (messages.length > 1 && said.length === 1) {
      const stream = streamText({ ...options, onError: ({ error }) => { throw error; } });
      for await (const _ of stream.textStream);
      answer = { text: await stream.text, response: await stream.response };
    } else {
      answer = await generateText(options);
    }
    messages.push(...answer.response.messages);
    said.push(answer.text);
  }
  found[kind] = { called, said };
}
console.log(JSON.stringify(found));
