/**
 * State of one message, and its changes by frames. Pure: each change creates a new object, and unchanged parts
 * stay the same object, so that views can compare by identity.
 *
 * @typedef {import("./text_state.js").TextPart} TextPart
 * @typedef {{type: "tool_call", tool_call_id: string, tool_name: string, argumentsText: string}} CallPart
 * @typedef {{type: "tool_result", tool_call_id: string, title?: string, output: string,
 *   status: "running" | "ok" | "failed", durationMs?: number, changedFiles?: number, attachments: object[]}} ResultPart
 * @typedef {TextPart | CallPart | ResultPart | {type: "error" | "image" | "file", html?: string}} Part
 * @typedef {object} Approval
 * @property {string} id
 * @property {number} after number of parts of the message when the approval was requested
 * @property {string} toolName
 * @property {unknown} arguments
 * @property {number} timeoutMs
 * @property {string} title of a question that is not an approval of a tool
 * @property {string | null} decision
 * @typedef {object} Message
 * @property {string} id
 * @property {"user" | "assistant" | "system"} role
 * @property {readonly Part[]} parts by index; holes are possible
 * @property {"running" | "done"} status
 * @property {boolean} queued
 * @property {boolean} hidden
 * @property {string | null} [color] of the edge, chosen by a plugin
 * @property {boolean} live it arrived while the page was open, and is not history
 * @property {number | null} seq its number in the log, if it is known
 * @property {string} [stopReason]
 * @property {object} metadata
 * @property {number | null} [createdAt] milliseconds since the epoch
 * @property {{retry_after_ms: number, provider: string} | null} rateLimit
 * @property {readonly Approval[]} approvals
 * @property {{name?: string, username?: string, user?: string, own?: boolean, group?: boolean, context?: boolean}} [origin]
 *   author and room, of a message in a room with several people
 */
import { timeOf } from "/shared/ids.js";
import { t } from "/shared/language.js";
import { emptyText, finishedText, withBlock, withChunk } from "./text_state.js";

/** @returns {Message} */
export function runningAnswer(id, held) {
  return { ...blank(id, "assistant"), createdAt: timeOf(id), status: "running", approvals: held?.approvals ?? [] };
}

/** Return a message that holds a question of a plugin and nothing else. @returns {Message} */
export function askingNotice(questionId) {
  return blank(`question-${questionId}`, "system");
}

/** Return a user message that the server has accepted but not sent yet. @returns {Message} */
export function acceptedMessage(id, entry, queued) {
  const { uploads = [] } = entry;
  const text = entry.text || (uploads.some(({ mime_type }) => mime_type.startsWith("audio/")) ? "[voice message]" : "");
  const files = uploads.filter(({ mime_type }) => !mime_type.startsWith("audio/")).map(shownUpload);
  const wire = { id, role: "user", created_at: entry.at, parts: [...(text ? [{ type: "text", content: text }] : []), ...entry.parts, ...files] };
  return { ...storedMessage(wire), queued };
}

/** Return the part that shows an upload until the server sends the real one. */
function shownUpload({ name, preview }) {
  const [, mime_type, data] = /^data:([^;,]+);base64,(.+)$/.exec(preview) ?? [];
  return data ? { type: "image", mime_type, data, alt_text: name } : { type: "file", path: name };
}

/**
 * Return a message of the log, which replaces the known one with the same id.
 * @param {object} wire the Message
 * @param {[number, string][]} [html] rendered parts
 * @param {Message} [held]
 * @param {number | null} [seq] where it was sent; a replaced message keeps its number
 * @returns {Message}
 */
export function storedMessage(wire, html = [], held = undefined, seq = null) {
  const rendered = new Map(html);
  const parts = (wire.parts ?? []).map((part, index) => storedPart(part, rendered.get(index), held?.parts[index]));
  return {
    ...blank(wire.id, wire.role),
    parts,
    seq: held?.seq ?? seq,
    metadata: wire.metadata ?? {},
    createdAt: wire.created_at ?? null,
    stopReason: wire.metadata?.stop_reason,
    hidden: wire.display?.hidden ?? false,
    color: wire.display?.color ?? null,
    queued: false, // its turn has begun
    approvals: held?.approvals ?? [],
    origin: wire.origin,
  };
}

/** Return the author of a message in a room; empty for the reader's own. @param {Message} message */
export function authorOf({ origin }) {
  if (!origin?.group && !origin?.context) return "";
  if (origin.own) return t("who.assistant");
  const at = origin.username ? `@${origin.username}` : "";
  return origin.name ? [origin.name, at && `(${at})`].filter(Boolean).join(" ") : at || origin.user || "";
}

/** Return a message with a plugin's rendering in place of its parts. @param {Message} message */
export function renderedMessage(message, markdown, html) {
  return { ...message, parts: [finishedText({ content: markdown }, html, undefined)] };
}

/** Return the message after one delta. @param {Message} message */
export function withDelta(message, frame) {
  switch (frame.type) {
    case "text_delta":
      return changed(message, frame, (p) => withChunk(p ?? emptyText(frame.kind), frame.content, frame.accumulated_length));
    case "block":
      return changed(message, frame, (part) => part && withBlock(part, frame));
    case "tool_call_start":
      return changed(message, frame, () => call(frame.tool_call_id, frame.tool_name, ""));
    case "tool_call_delta":
      return changed(message, frame, (p) => p && { ...p, argumentsText: p.argumentsText + frame.arguments_delta });
    case "tool_result_start":
      return changed(message, frame, () => startedResult(frame));
    case "tool_result_delta":
      return changed(message, frame, (part) => part && { ...part, output: part.output + frame.content });
    case "tool_result_end":
      return changed(message, frame, (part) => part && endedResult(part, frame));
    case "part":
      return changed(message, frame, (held) => storedPart(frame.part, undefined, held));
    case "metadata_delta":
      return { ...message, metadata: { ...message.metadata, ...figures(frame) }, rateLimit: frame.rate_limit ?? null };
    case "complete":
      return { ...message, status: "done", metadata: frame.final_metadata, stopReason: frame.stop_reason, rateLimit: null };
    default:
      return message;
  }
}

/** @param {Message} message @param {string} id */
export function withoutApproval(message, id) {
  return { ...message, approvals: message.approvals.filter((held) => held.id !== id) };
}

/** @param {Message} message @param {Approval} approval */
export function withApproval(message, approval) {
  const others = message.approvals.filter((held) => held.id !== approval.id);
  return { ...message, approvals: [...others, approval] };
}

/** Return whether a tool waits for a decision. @param {Message} message */
export function asksApproval(message) {
  return message.status === "running" && message.approvals.some((approval) => approval.decision === null);
}

/** Return the text for the copy button: without reasoning, notices and quotes. @param {Message} message */
export function plainText(message) {
  const texts = message.parts.filter((part) => part?.type === "text" && !["reasoning", "notice", "quote"].includes(part.kind));
  return texts.map((part) => part.text).join("\n\n");
}

function blank(id, role) {
  return {
    id, role, parts: [], seq: null, status: "done", queued: false, hidden: false, live: false, metadata: {}, rateLimit: null, approvals: [],
  };
}

function changed(message, frame, change) {
  const part = change(message.parts[frame.part_index]);
  if (part === undefined || part === message.parts[frame.part_index]) return message;
  const parts = message.parts.slice();
  parts[frame.part_index] = part;
  return { ...message, parts, rateLimit: null };
}

function storedPart(wire, html, held) {
  switch (wire.type) {
    case "text":
      return finishedText(wire, html, held?.type === "text" ? held : undefined);
    case "tool_call":
      return call(wire.tool_call_id, wire.tool_name, wire.invalid_arguments ?? JSON.stringify(wire.arguments ?? {}));
    case "tool_result":
      return storedResult(wire);
    default:
      return html === undefined ? wire : { ...wire, html };
  }
}

function call(id, name, argumentsText) {
  return { type: "tool_call", tool_call_id: id, tool_name: name, argumentsText };
}

function startedResult(frame) {
  const { tool_call_id, title, display } = frame;
  return { type: "tool_result", tool_call_id, title, display, output: "", status: "running", attachments: [] };
}

function endedResult(part, frame) {
  return { ...part, status: frame.is_error ? "failed" : "ok", durationMs: frame.duration_ms, changedFiles: frame.metadata?.changed_files, sessions: frame.metadata?.sessions };
}

function storedResult(wire) {
  return {
    type: "tool_result",
    tool_call_id: wire.tool_call_id,
    title: wire.title,
    display: wire.display,
    output: wire.output ?? "",
    status: wire.is_error ? "failed" : "ok",
    durationMs: wire.metadata?.duration_ms,
    changedFiles: wire.metadata?.changed_files,
    sessions: wire.metadata?.sessions,
    attachments: wire.attachments ?? [],
  };
}

function figures({ input_tokens, output_tokens, cost }) {
  return { input_tokens, output_tokens, cost };
}
