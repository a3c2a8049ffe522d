// OpenAI's own Node SDK against a router at BASE_URL that serves MODEL, and one at TOOLS_URL whose MODEL takes tools.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";

const MODEL = process.env.MODEL;
const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const asked = { model: MODEL, temperature: 0, messages: [{ role: "user", content: QUESTION }] };

test("a chat is answered", async () => {
  const { data, response } = await client.chat.completions.create(asked).withResponse();
  assert.equal(data.choices[0].message.content, ANSWER);
  assert.equal(data.usage.completion_tokens, 8);
  assert.ok(response.headers.get("x-pointsman-replica"));
});

test("a chat streams, with its usage at the end", async () => {
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, ANSWER);
  assert.equal(usage.completion_tokens, 8);
});

test("a tool is called, whole and streamed, and its answer taken", async () => {
  const parameters = {
    type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  };
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const body = { ...asked, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 60 };
  const client = new OpenAI({ baseURL: process.env.TOOLS_URL, apiKey: "unused", maxRetries: 0 });
  const { message } = (await client.chat.completions.create(body)).choices[0];
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  const told = { role: "tool", tool_call_id: call.id, content: "18 degrees" };
  const after = await client.chat.completions.create({ ...asked, tools, max_tokens: 20, messages: [...asked.messages, message, told] });
  assert.ok(after.choices[0].message.content);
});

test("a response is stored, streamed and followed", async () => {
  const first = await client.responses.create({ model: MODEL, input: QUESTION, temperature: 0 });
  assert.equal(first.output_text, ANSWER);
  const stream = await client.responses.create({
    model: MODEL,
    input: "And of Italy?",
    previous_response_id: first.id,
    temperature: 0,
    max_output_tokens: 20,
    stream: true,
  });
  let text = "";
  let last;
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.match(text, /Rome/);
  assert.ok(["response.completed", "response.incomplete"].includes(last.type));
  assert.equal((await client.responses.retrieve(last.response.id)).output_text, text);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("a batch of a file comes to its end", { timeout: 300_000 }, async () => {
  const lines = [0, 1, 2].map((number) =>
    JSON.stringify({ custom_id: `q${number}`, method: "POST", url: "/v1/chat/completions", body: asked }),
  );
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.status, "completed");
  const text = await (await client.files.content(batch.output_file_id)).text();
  const results = text.trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(results.map((each) => each.custom_id).sort(), ["q0", "q1", "q2"]);
  for (const each of results) assert.equal(each.response.body.choices[0].message.content, ANSWER);
  await client.files.delete(file.id);
});

test("embeddings have a vector each", async () => {
  const { data } = await client.embeddings.create({ model: MODEL, input: ["a", "b"] });
  assert.equal(data.length, 2);
  assert.ok(data[0].embedding.length > 100);
});

test("a wrong request names the field, an unknown model is not found", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, messages: [] }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "messages");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...asked, model: "none" }), OpenAI.NotFoundError);
});

test("a stream that its client leaves ends there", async () => {
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
});
