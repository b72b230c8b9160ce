// Clients of OpenAI at the gateway: `node client.mjs langchain|vercel BASE_URL`. Prints what they understood as JSON.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [which, baseURL] = process.argv.slice(2);
const parameters = z.object({ city: z.string() });
const description = "The weather of a city.";
const weather = async ({ city }) => `20 degrees in ${city}`;
const question = "How is the weather in Rome?";

async function langchain() {
  const model = new ChatOpenAI({ model: "openai/fake-small", apiKey: "none", maxRetries: 0, configuration: { baseURL } });
  const bound = model.bindTools([langchainTool(weather, { name: "weather", description, schema: parameters })]);
  const messages = [new HumanMessage(question)];
  const first = await bound.invoke(messages);
  for (const call of first.tool_calls)
    messages.push(first, new ToolMessage({ tool_call_id: call.id, content: await weather(call.args) }));
  const second = await bound.invoke(messages);
  let streamed;
  for await (const chunk of await bound.stream([new HumanMessage(question)]))
    streamed = streamed ? streamed.concat(chunk) : chunk;
  return {
    calls: first.tool_calls.map(({ name, args }) => ({ name, args })),
    finish: first.response_metadata.finish_reason,
    text: second.content,
    streamed: streamed.tool_calls.map(({ name, args }) => ({ name, args })),
  };
}

async function vercel() {
  const model = createOpenAICompatible({ name: "gateway", baseURL, apiKey: "none" })("openai/fake-small");
  const asked = {
    model,
    prompt: question,
    tools: { weather: tool({ description, inputSchema: parameters, execute: weather }) },
    stopWhen: stepCountIs(3),
    temperature: 0,
    maxOutputTokens: 99,
    maxRetries: 0,
  };
  const whole = await generateText(asked);
  const stream = streamText(asked);
  let streamed = "";
  for await (const text of stream.textStream) streamed += text;
  const told = (steps) => steps.flatMap((step) => step.toolCalls.map(({ toolName, input }) => ({ name: toolName, args: input })));
  return {
    calls: told(whole.steps),
    finish: whole.steps[0].finishReason,
    text: whole.text,
    streamed: told(await stream.steps),
    streamedText: streamed,
  };
}

console.log(JSON.stringify(await { langchain, vercel }[which]()));
