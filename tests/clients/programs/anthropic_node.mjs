// The anthropic SDK for Node. Arguments: the base URL and what to do; prints what it got as JSON.
import Anthropic from "@anthropic-ai/sdk";

const [url, ...what] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "any" });
const ask = { model: "tiny", max_tokens: 12, messages: [{ role: "user", content: "Say what 世界 is." }] };

async function told(wanted) {
  try {
    await wanted;
  } catch (error) {
    return [error.constructor.name, error.status, error.message];
  }
  return null;
}

async function answers() {
  const whole = await client.messages.create(ask);
  let text = "";
  const stream = client.messages.stream(ask).on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  return {
    whole: whole.content.map((block) => block.text),
    stopped: [whole.stop_reason, whole.usage.output_tokens],
    stream: text,
    streamed: [final.stop_reason, final.usage.output_tokens],
  };
}

async function errors() {
  const create = (changes) => told(client.messages.create({ ...ask, ...changes }));
  const other = { model: "other" };
  return [await create(other), await create({ max_tokens: -1 }), await create({ ...other, stream: true })];
}

const refused = () => told(client.messages.create(ask));

const wanted = { answers, errors, refused };
const got = {};
for (const name of what) got[name] = await wanted[name]();
process.stdout.write(JSON.stringify(got));
