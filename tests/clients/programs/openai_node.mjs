// The openai SDK for Node. Arguments: the base URL and what to do; prints what it got as JSON.
import OpenAI from "openai";

const [url, ...what] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
const ask = { model: "tiny", messages: [{ role: "user", content: "Say what 世界 is." }], max_tokens: 12 };

async function told(wanted) {
  try {
    await wanted;
  } catch (error) {
    return [error.constructor.name, error.status, error.message];
  }
  return null;
}

async function answers() {
  const whole = await client.chat.completions.create(ask);
  let text = "";
  let usage = null;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...ask, ...options })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const { content } = whole.choices[0].message;
  return { whole: [content, whole.choices[0].finish_reason, whole.usage], stream: text, usage, models };
}

async function errors() {
  const create = (changes) => told(client.chat.completions.create({ ...ask, ...changes }));
  const other = { model: "other" };
  return [await create(other), await create({ max_tokens: -1 }), await create({ ...other, stream: true })];
}

const refused = () => told(client.chat.completions.create(ask));

const wanted = { answers, errors, refused };
const got = {};
for (const name of what) got[name] = await wanted[name]();
process.stdout.write(JSON.stringify(got));
