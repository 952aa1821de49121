// The script of test_openai_javascript.py, for OpenAI's client in JavaScript.
// node openai_client.cjs FOLDER_WITH_NODE_MODULES SERVER
const { createRequire } = require("node:module");
const OpenAI = createRequire(`${process.argv[2]}/`)("openai");

const client = new OpenAI({ baseURL: `${process.argv[3]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const model = "toy";

async function failure(work) {
  try {
    const stream = await work();
    for await (const _ of stream) {
    }
    return null;
  } catch (error) {
    return [error.constructor.name, error.status ?? null];
  }
}

async function main() {
  const { chat, completions, embeddings, models } = client;
  const whole = await chat.completions.create({ model, messages, max_tokens: 5, n: 2 });
  const stream = await chat.completions.create({
    model, messages, max_tokens: 5, ignore_eos: true,
    stream: true, stream_options: { include_usage: true },
  });
  let [text, usage] = ["", null];
  for await (const chunk of stream) {
    if (chunk.choices.length) text += chunk.choices[0].delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const plain = await completions.create({ model, prompt: "echo abc", logprobs: 2 });
  const vectors = await embeddings.create({ model, input: "abc" });
  const bad = [
    () => chat.completions.create({ model: "other", messages }),
    () => chat.completions.create({ model, messages, temperature: 9 }),
    () => chat.completions.create({ model, messages: [] }),
    () => embeddings.create({ model, input: "a", dimensions: 4 }),
    () => completions.create({ model, prompt: "BOOM", stream: true }),
  ];
  const errors = [];
  for (const work of bad) errors.push(await failure(work));
  console.log(JSON.stringify({
    models: (await models.list()).data.map((one) => one.id),
    whole: whole.choices.map((one) => one.message.content),
    finish: whole.choices.map((one) => one.finish_reason),
    used: whole.usage.completion_tokens,
    streamed: text,
    stream_used: usage.completion_tokens,
    tokens: plain.choices[0].logprobs.tokens,
    vector: vectors.data[0].embedding,
    errors,
  }));
}

main();
