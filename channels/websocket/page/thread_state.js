/**
 * One conversation as the page holds it: its messages in order, and how far its events were seen. Pure.
 *
 * @typedef {import("./message_state.js").Message} Message
 * @typedef {object} Thread
 * @property {number} seq the last event seen; where to resume after a lost connection
 * @property {boolean} loaded whether the history is here
 * @property {readonly string[]} order message ids
 * @property {Readonly<Record<string, Message>>} messages
 * @property {string | null} running the answer in progress
 * @property {boolean} missing whether the server says that there is no such session
 * @property {boolean} awaiting a message was accepted and its answer has not begun
 */
import { acceptedMessage, renderedMessage, runningAnswer, storedMessage, withApproval, withDelta } from "./message_state.js";

/** @returns {Thread} */
export function emptyThread() {
  return { seq: 0, loaded: false, order: [], messages: {}, running: null, missing: false, awaiting: false };
}

/**
 * The thread after one event of its session. What is older than `seq` was seen already. Several events may
 * share a number: a running answer is replayed as its start and all it has so far, and a block carries the
 * number of the event it goes with, before or after it. Neither can be applied twice by that: a start
 * empties the answer, and a block knows its place.
 * @param {Thread} thread
 */
export function withEvent(thread, frame) {
  if (frame.type === "block") return applied(thread, frame);
  if (frame.seq < thread.seq) return thread;
  return { ...applied(thread, frame), seq: frame.seq ?? thread.seq };
}

/** The server has the message: it stands in the log now. @param {Thread} thread */
export function withAccepted(thread, ack, entry) {
  const answered = ack.answer_id in thread.messages;
  const next = { ...thread, loaded: true, missing: false, awaiting: !answered && thread.running === null };
  if (ack.message_id in thread.messages) return next;
  return put(next, acceptedMessage(ack.message_id, entry, thread.running !== null && !answered));
}

function applied(thread, frame) {
  switch (frame.type) {
    case "message":
      return withStored(thread, frame);
    case "turn_start":
      return withTurn(thread, frame);
    case "approval_request":
      return withRequest(thread, frame);
    case "approval_resolved":
      return withDecision(thread, frame);
    case "session":
      return frame.status === "idle" ? { ...thread, awaiting: false } : thread;
    default:
      return frame.message_id ? withPiece(thread, frame) : thread;
  }
}

function withStored(thread, frame) {
  const { message, html, rendered, rendered_html } = frame;
  const stored = storedMessage(message, html, thread.messages[message.id]);
  const shown = rendered_html === undefined ? stored : renderedMessage(stored, rendered, rendered_html);
  const next = put(thread, shown);
  if (message.role === "user") return next;
  return { ...next, awaiting: false, running: thread.running === message.id ? null : thread.running };
}

/** An answer begins, perhaps again: then what is held of it is of a run that was lost. */
function withTurn(thread, frame) {
  const next = put(thread, runningAnswer(frame.message_id, frame.attempt > 1 ? undefined : thread.messages[frame.message_id]));
  const messages = unqueued(next, frame.reply_to);
  return { ...next, messages, running: frame.message_id, awaiting: false };
}

function withPiece(thread, frame) {
  const held = thread.messages[frame.message_id] ?? runningAnswer(frame.message_id);
  const next = put(thread, withDelta(held, frame));
  if (frame.type !== "complete") return next;
  return { ...next, running: thread.running === frame.message_id ? null : thread.running };
}

function withRequest(thread, frame) {
  const message = thread.messages[thread.running ?? thread.order.at(-1)];
  if (!message) return thread;
  return put(thread, withApproval(message, {
    id: frame.approval_id,
    after: message.parts.length,
    toolName: frame.tool_name,
    arguments: frame.arguments,
    timeoutMs: frame.timeout_ms,
    always: frame.always ?? null,
    decision: null,
  }));
}

function withDecision(thread, frame) {
  for (const message of Object.values(thread.messages)) {
    const approval = message.approvals.find((held) => held.id === frame.approval_id);
    if (approval) return put(thread, withApproval(message, { ...approval, decision: frame.decision }));
  }
  return thread;
}

/** Keep a message; one that comes when the history is here is new to the reader. @param {Message} message */
function put(thread, message) {
  const held = thread.messages[message.id];
  const order = held ? thread.order : [...thread.order, message.id];
  const kept = { ...message, live: held?.live ?? thread.loaded };
  return { ...thread, order, messages: { ...thread.messages, [message.id]: kept } };
}

/** The messages with none waiting any more up to the one that is being answered. */
function unqueued(thread, replyTo) {
  const messages = { ...thread.messages };
  const last = thread.order.indexOf(replyTo);
  for (const id of thread.order.slice(0, last + 1)) {
    if (messages[id].queued) messages[id] = { ...messages[id], queued: false };
  }
  return messages;
}
