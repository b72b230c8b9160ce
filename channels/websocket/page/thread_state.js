/**
 * State of one conversation: its messages in order, and the last event seen. Pure.
 *
 * @typedef {import("./message_state.js").Message} Message
 * @typedef {object} Thread
 * @property {number} seq the last event seen; where to resume after a lost connection
 * @property {boolean} loaded whether the history was received
 * @property {readonly string[]} order message ids
 * @property {Readonly<Record<string, Message>>} messages
 * @property {string | null} running the answer in progress
 * @property {boolean} missing whether the server reported that the session does not exist
 * @property {string | null} gap the message after which messages may be left out
 * @property {boolean | null} earlier whether the log has messages before the first one; null if none were ever left out
 * @property {"earlier" | "gap" | "failed" | null} fetching what is being fetched, or that the last fetch failed
 * @property {boolean} listed whether its versions are known as they are now
 * @property {Thread | null} before what is shown until the log that replaces it was received
 * @property {boolean} awaiting a message was accepted and its answer has not begun
 */
import { acceptedMessage, askingNotice, renderedMessage, runningAnswer, storedMessage, withApproval, withDelta, withoutApproval } from "./message_state.js";

/** @returns {Thread} */
export function emptyThread() {
  return { seq: 0, loaded: false, order: [], messages: {}, running: null, missing: false, gap: null, earlier: null, fetching: null, listed: false, before: null, awaiting: false };
}

/** Return the thread whose log is sent again. @param {Thread} thread */
export function withChangedLog(thread, { gap }) {
  return { ...emptyThread(), awaiting: thread.awaiting, gap: gap ?? null, before: shownOf(thread) };
}

/** Return what views show of a thread: its log, or the one before it until it was received. @param {Thread} [thread] */
export function shownOf(thread) {
  return thread?.before ?? thread;
}

/** Return the thread after its replay. @param {Thread} thread */
export function withReplayed(thread, { earlier }) {
  return { ...thread, loaded: true, before: null, earlier: earlier ? true : thread.earlier, fetching: thread.fetching === "failed" ? null : thread.fetching };
}

/**
 * Return the numbers that messages which are not loaded lie between: those in the gap, else those before the first one.
 * @param {Thread} thread @param {boolean} inGap
 */
export function holeOf(thread, inGap) {
  const behind = thread.order.slice(inGap ? thread.order.indexOf(thread.gap) + 1 : 0);
  const next = behind.find((id) => thread.messages[id].seq !== null);
  return { after: inGap ? thread.messages[thread.gap]?.seq ?? 0 : 0, before: thread.messages[next]?.seq ?? null };
}

/**
 * Return the thread with messages that were fetched for its gap, or from before the first one.
 * @param {Thread} thread @param {{inGap: boolean, before: number, page: object | null}} fetched `page` is null after a failure
 */
export function withFetched(thread, { inGap, before, page }) {
  const held = { ...thread, fetching: page === null ? "failed" : null };
  // Another log is shown by now.
  if (page === null || holeOf(thread, inGap).before !== before) return held;
  const found = page.messages.filter(({ message }) => !(message.id in thread.messages)).map((one) => fromLog(one));
  const at = thread.order.findIndex((id) => thread.messages[id].seq === before);
  const order = [...thread.order.slice(0, at), ...found.map(({ id }) => id), ...thread.order.slice(at)];
  const messages = { ...thread.messages, ...Object.fromEntries(found.map((message) => [message.id, message])) };
  const rest = inGap ? { gap: page.next === null ? null : thread.gap } : { earlier: page.next !== null };
  return { ...held, order, messages, ...rest };
}

/**
 * Return the thread after one event of its session. Events older than `seq` are ignored. Several events may have
 * the same number: a running answer is replayed as its start and its text so far, and a block has the number of
 * its text event. Applying them again is safe: a start clears the answer, and a block has an index.
 * @param {Thread} thread
 */
export function withEvent(thread, frame) {
  if (frame.type === "block") return applied(thread, frame);
  if (frame.seq < thread.seq) return thread;
  return { ...applied(thread, frame), seq: frame.seq ?? thread.seq };
}

/** Return the thread after the acknowledgement of a message, which is in the log then. @param {Thread} thread */
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
  const { message } = frame;
  if (isLeftOut(thread, message)) return thread;
  // It is also the first one of the replay, or within it: none are left out.
  if (thread.gap === message.id && message.id in thread.messages) thread = { ...thread, gap: null };
  const next = put(thread, fromLog(frame, thread.messages[message.id]));
  if (message.role === "user") return next;
  return { ...next, awaiting: false, running: thread.running === message.id ? null : thread.running };
}

/**
 * Return whether a message of the log is one of those that are not loaded, which are before the newest ones: it was
 * changed. It is fetched as it is then.
 */
function isLeftOut(thread, { id, created_at: at }) {
  if (!thread.loaded || id in thread.messages || (thread.gap === null && !thread.earlier)) return false;
  const newest = thread.messages[thread.order[thread.gap === null ? 0 : thread.order.indexOf(thread.gap) + 1]];
  return Boolean(newest?.createdAt) && at < newest.createdAt;
}

/** Return the message of a frame, or of a list of the log. @param {Message} [held] */
function fromLog({ message, html, rendered, rendered_html, seq }, held) {
  const stored = storedMessage(message, html, held, seq);
  return rendered_html === undefined ? stored : renderedMessage(stored, rendered, rendered_html);
}

/** Begin an answer; if it was begun before, discard its content, which is from a lost run. */
function withTurn(thread, frame) {
  const next = put(thread, runningAnswer(frame.message_id, frame.attempt > 1 ? undefined : thread.messages[frame.message_id]));
  const messages = unqueued(next, frame.reply_to);
  return { ...next, messages, running: frame.message_id, awaiting: false };
}

function withPiece(thread, frame) {
  const held = thread.messages[frame.message_id] ?? runningAnswer(frame.message_id);
  const next = put(thread, withDelta(held, frame));
  if (frame.type !== "complete") return next;
  const ended = { ...next, running: thread.running === frame.message_id ? null : thread.running };
  const { parts, approvals, stopReason } = next.messages[frame.message_id];
  // A message that only answered a question has no answer of its own.
  return parts.length + approvals.length === 0 && stopReason === "end_turn" ? without(ended, frame.message_id) : ended;
}

function withRequest(thread, frame) {
  const holder = Object.values(thread.messages).find((held) => held.approvals.some(({ id }) => id === frame.approval_id));
  const last = thread.messages[thread.order.at(-1)];
  // A question outside of an answer is shown with the last one, or alone.
  const place = last && last.role !== "user" ? last : askingNotice(frame.approval_id);
  const message = thread.messages[thread.running] ?? holder ?? place;
  // A turn that is repeated after a restart shows its question again.
  if (holder && holder.id !== message.id) thread = put(thread, withoutApproval(holder, frame.approval_id));
  return put(thread, withApproval(message, {
    id: frame.approval_id,
    after: message.parts.length,
    toolName: frame.tool_name,
    arguments: frame.arguments,
    timeoutMs: frame.timeout_ms,
    always: frame.always ?? null,
    reason: frame.reason ?? "",
    title: frame.title ?? "",
    detail: frame.detail ?? "",
    choices: frame.choices ?? [],
    multiple: frame.multiple ?? false,
    freeText: frame.free_text ?? false,
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

/** Add a message; it counts as new if the history was received before. @param {Message} message */
function put(thread, message) {
  const held = thread.messages[message.id];
  const order = held ? thread.order : [...thread.order, message.id];
  const kept = { ...message, live: held?.live ?? thread.loaded };
  return { ...thread, order, messages: { ...thread.messages, [message.id]: kept } };
}

function without(thread, id) {
  const { [id]: _, ...messages } = thread.messages;
  return { ...thread, messages, order: thread.order.filter((one) => one !== id) };
}

/** Return the messages with `queued` removed up to the one that is being answered. */
function unqueued(thread, replyTo) {
  const messages = { ...thread.messages };
  const last = thread.order.indexOf(replyTo);
  for (const id of thread.order.slice(0, last + 1)) {
    if (messages[id].queued) messages[id] = { ...messages[id], queued: false };
  }
  return messages;
}
