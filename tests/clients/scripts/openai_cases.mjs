// The npm client `openai`, as it is: chat, streams, tools, forms, responses, errors.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

// Packages are those of the folder in which it runs; a module's own folder has none.
const require = createRequire(path.join(process.cwd(), "package.json"));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { default: OpenAI } = await load("openai");
const { zodFunction, zodResponseFormat } = await load("openai/helpers/zod");
const { z } = await load("zod");

const model = process.env.CLIENT_MODEL;
const client = new OpenAI({
  baseURL: process.env.CLIENT_BASE_URL,
  apiKey: process.env.CLIENT_API_KEY,
  maxRetries: 0,
});
const ask = (content) => ({
  model,
  temperature: 0,
  max_tokens: 60,
  messages: [{ role: "user", content }],
});
const CAPITAL = ask("What is the capital of France?");
const WEATHER = ask("What is the weather in Paris?");
const City = z.object({ city: z.enum(["Paris", "Rome"]) });
const tools = [zodFunction({ name: "get_weather", parameters: City })];
const named = { type: "function", function: { name: "get_weather" } };

const cases = {
  async chat() {
    const whole = await client.chat.completions.create(CAPITAL);
    const deltas = [];
    for await (const chunk of await client.chat.completions.create({ ...CAPITAL, stream: true })) {
      deltas.push(chunk.choices[0]?.delta.content ?? "");
    }
    return { text: whole.choices[0].message.content, streamed: deltas, usage: whole.usage };
  },

  async stream_helper() {
    const stream = client.chat.completions.stream(CAPITAL);
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    const final = await stream.finalChatCompletion();
    return { text: final.choices[0].message.content, streamed: deltas };
  },

  async tools() {
    const options = { ...WEATHER, tools, tool_choice: named };
    const whole = await client.chat.completions.parse(options);
    const [call] = whole.choices[0].message.tool_calls;
    const stream = client.chat.completions.stream(options);
    const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    return {
      finish_reason: whole.choices[0].finish_reason,
      name: call.function.name,
      args: call.function.parsed_arguments,
      streamed_args: streamed.function.parsed_arguments,
    };
  },

  async structured() {
    const form = zodResponseFormat(City, "city");
    const answer = await client.chat.completions.parse({ ...CAPITAL, response_format: form });
    return answer.choices[0].message.parsed;
  },

  async completion() {
    const options = { model, prompt: "The capital of France is", temperature: 0, max_tokens: 6 };
    const whole = await client.completions.create(options);
    const deltas = [];
    for await (const chunk of await client.completions.create({ ...options, stream: true })) {
      deltas.push(chunk.choices[0].text);
    }
    return { text: whole.choices[0].text, streamed: deltas };
  },

  async responses() {
    const options = { model, input: "What is the capital of France?", temperature: 0 };
    const whole = await client.responses.create({ ...options, max_output_tokens: 30 });
    const deltas = [];
    const stream = client.responses.stream({ ...options, max_output_tokens: 30 });
    stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
    const final = await stream.finalResponse();
    return { text: whole.output_text, streamed: deltas, status: final.status };
  },

  async errors() {
    const found = [];
    for (const [options, apiKey] of [
      [{ ...CAPITAL, temperature: -1 }, undefined],
      [{ ...CAPITAL, model: "gpt-9" }, undefined],
      [CAPITAL, "wrong"],
    ]) {
      const teller = apiKey ? client.withOptions({ apiKey }) : client;
      await teller.chat.completions.create(options).then(
        () => found.push("no error"),
        (error) => found.push(error.constructor.name),
      );
    }
    return found;
  },
};

const found = {};
for (const [name, run] of Object.entries(cases)) {
  try {
    found[name] = { saw: await run() };
  } catch (error) {
    found[name] = { error: String(error.stack) };
  }
}
console.log(JSON.stringify(found));
