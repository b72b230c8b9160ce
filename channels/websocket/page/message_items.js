/**
 * Visible items of a message, in order: a tool call and its result are one item, an approval has the position
 * at which it was requested. Pure.
 *
 * @typedef {{key: string, type: string, part?: object, run?: object, approval?: object}} Item
 */

/** @param {import("./message_state.js").Message} message @returns {Item[]} */
export function itemsOf(message) {
  const results = new Map(byType(message, "tool_result").map((part) => [part.tool_call_id, part]));
  const calls = new Set(byType(message, "tool_call").map((part) => part.tool_call_id));
  const live = message.status === "running";
  const asking = askingCall(message, results);
  const items = [];
  message.parts.forEach((part, index) => {
    items.push(...approvalsAt(message, index));
    const item = itemOf(part, index, results, calls, { live, asking });
    if (item) items.push(item);
  });
  const late = message.approvals.filter((approval) => approval.after >= message.parts.length);
  return [...items, ...late.map(approvalItem)];
}

function itemOf(part, index, results, calls, { live, asking }) {
  const key = `part-${index}`;
  if (part.type === "tool_call") return { key, type: "tool", run: { call: part, result: results.get(part.tool_call_id), live, asks: part === asking } };
  if (part.type !== "tool_result") return { key, type: part.type === "text" ? `text-${part.kind}` : part.type, part };
  return calls.has(part.tool_call_id) ? null : { key, type: "tool", run: { result: part, live } };
}

/** Return the call that waits for an approval. Tools run in sequence, so it is the first of its name without a result. */
function askingCall(message, results) {
  const names = message.approvals.filter((approval) => approval.decision === null).map((approval) => approval.toolName);
  const isOpen = ({ tool_call_id }) => (results.get(tool_call_id)?.status ?? "running") === "running";
  return byType(message, "tool_call").find((call) => names.includes(call.tool_name) && isOpen(call));
}

function byType(message, type) {
  return message.parts.filter((part) => part?.type === type);
}

function approvalsAt(message, index) {
  return message.approvals.filter((approval) => approval.after === index).map(approvalItem);
}

function approvalItem(approval) {
  return { key: `approval-${approval.id}`, type: "approval", approval };
}
