/**
 * Replay of a conversation: the same parts in the same order, with the recorded durations. Pauses between
 * messages are limited to LONGEST_PAUSE_MS.
 */
import { emptyText } from "./text_state.js";

const LONGEST_PAUSE_MS = 3_000;
const FRAME_MS = 33;

/**
 * Return the states of a conversation over time. Pure.
 * @param {import("./thread_state.js").Thread} thread
 * @returns {{wait: number, thread: import("./thread_state.js").Thread}[]} each with the wait before it, in milliseconds
 */
export function statesOf(thread) {
  const states = [];
  let ended = null;
  thread.order.forEach((id, index) => {
    const message = thread.messages[id];
    const before = thread.order.slice(0, index);
    const pause = ended === null || !message.createdAt ? 0 : Math.max(0, message.createdAt - ended);
    let wait = Math.min(LONGEST_PAUSE_MS, pause);
    for (const shown of message.role === "assistant" ? growing(message) : [{ wait: 0, message }]) {
      const messages = { ...thread.messages, [id]: { ...shown.message, live: false } };
      states.push({ wait: wait + shown.wait, thread: { ...thread, order: [...before, id], messages, earlier: null, awaiting: false } });
      wait = 0;
    }
    ended = (message.createdAt ?? 0) + (message.metadata.duration_ms ?? 0);
  });
  return states;
}

/** Return the states of a growing answer: tool results take the tool's duration, words and other parts share the rest. */
function growing(message) {
  const isTool = (part) => part.type === "tool_result" && part.durationMs !== undefined;
  const tools = message.parts.filter(isTool).reduce((sum, part) => sum + part.durationMs, 0);
  const pieces = message.parts.map((part) => (part.type === "text" ? part.text.match(/\s*\S+\s*|\s+/g) ?? [] : [part]));
  const count = message.parts.reduce((sum, part, index) => sum + (isTool(part) ? 0 : pieces[index].length), 0);
  const each = Math.max(0, (message.metadata.duration_ms ?? 0) - tools) / Math.max(1, count);
  const states = [];
  message.parts.forEach((part, index) => {
    const done = message.parts.slice(0, index);
    const partly = (last, wait) => states.push({ wait, message: { ...message, status: "running", parts: [...done, last] } });
    let waited = 0;
    let text = "";
    for (const piece of part.type === "text" ? pieces[index].slice(0, -1) : []) {
      text += piece;
      waited += each;
      if (waited < FRAME_MS) continue;
      partly({ ...emptyText(part.kind), text, tail: text }, waited);
      waited = 0;
    }
    partly(part, waited + (isTool(part) ? part.durationMs : each));
  });
  return [...states, { wait: 0, message }];
}

/** Player of a conversation; calls `show` with each state, and with null at the end. */
export class Replay {
  #states;
  #show;
  #timer = 0;

  constructor(thread, show) {
    this.#states = statesOf(thread);
    this.#show = show;
    this.#next(0);
  }

  /** End the replay early. */
  stop() {
    clearTimeout(this.#timer);
    this.#show(null);
  }

  #next(index) {
    if (index === this.#states.length) {
      this.stop();
      return;
    }
    const { wait, thread } = this.#states[index];
    this.#timer = setTimeout(() => (this.#show(thread), this.#next(index + 1)), wait);
  }
}
