// llama.cpp's own speculation, through node-llama-cpp: tokens a second after the first, for prompts given as token ids.
//
//     node benchmarks/node_llama_cpp.mjs < question.json > answer.json      (benchmarks/llama_cpp.py --node asks)
//
// Question: {modules, model, draft (or null), threads, context, tokens, prompts: [[id, …], …]}. Answer: {way: [{seconds,
// tokens}, …]}, a list as long as the prompts for each way: plain, lookup, draft. Predictors have their defaults.
import {createRequire} from "node:module";
import {readFileSync} from "node:fs";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const asked = JSON.parse(readFileSync(0, "utf8"));
const require = createRequire(join(asked.modules, "x.js"));
const {getLlama, DraftSequenceTokenPredictor, InputLookupTokenPredictor} =
    await import(pathToFileURL(require.resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", progressLogs: false, maxThreads: asked.threads});

const sizes = {contextSize: asked.context, threads: asked.threads};
const model = await llama.loadModel({modelPath: asked.model});
const draftModel = asked.draft ? await llama.loadModel({modelPath: asked.draft}) : null;

const ways = {
    plain: async () => undefined,
    lookup: async () => new InputLookupTokenPredictor(),
};
if (draftModel) ways.draft = async () => new DraftSequenceTokenPredictor((await draftModel.createContext(sizes)).getSequence());

async function run(ids, tokenPredictor) {
    const context = await model.createContext(sizes);
    const sequence = context.getSequence(tokenPredictor ? {tokenPredictor} : {});
    const made = [];
    let began = 0;
    for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
        made.push(token);
        if (made.length === 1) began = performance.now();
        if (made.length >= asked.tokens) break;
    }
    const seconds = (performance.now() - began) / 1000;
    await context.dispose();
    return {seconds, tokens: made};
}

const answer = Object.fromEntries(Object.keys(ways).map((way) => [way, []]));
for (const ids of asked.prompts)
    for (const [way, predictor] of Object.entries(ways))
        answer[way].push(await run(ids, await predictor()));
process.stdout.write(JSON.stringify(answer), () => process.exit(0));
