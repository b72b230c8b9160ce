/** `<tl-approval>`: the approval request of a tool, with three buttons; after the decision it shrinks to a line. */
import { h } from "./dom.js";
import { duration } from "./figures.js";

const OUTCOMES = { once: "allowed once", always: "always allowed", deny: "denied", timeout: "not answered in time", cancelled: "no longer needed" };

export class ApprovalCard extends HTMLElement {
  #shown = null;

  /** @param {import("./message_state.js").Approval} approval */
  render(approval) {
    if (this.#shown === approval) return;
    this.#shown = approval;
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", `Approval for ${approval.toolName}`);
    this.toggleAttribute("data-decided", approval.decision !== null);
    this.replaceChildren(...(approval.decision === null ? question(approval) : [outcome(approval)]));
  }
}

function question({ id, toolName, timeoutMs, always, arguments: given }) {
  const choices = [["once", "Allow once", "primary"], ["deny", "Deny", ""]];
  // The button "Always" names its scope.
  if (always) choices.splice(1, 0, ["always", `Always: ${always}`, ""]);
  const decide = (decision) => (event) =>
    event.target.dispatchEvent(new CustomEvent("decide", { bubbles: true, detail: { id, decision } }));
  const buttons = choices.map(([value, label, look]) => h("button", { type: "button", class: look, onclick: decide(value) }, label));
  return [
    h("p", {}, h("code", {}, toolName), " asks for your approval", h("span", { class: "muted" }, limit(timeoutMs))),
    h("pre", { tabindex: "0", "aria-label": "What it wants to do" }, visible(typeof given === "string" ? given : JSON.stringify(given, null, 2))),
    h("div", { class: "choices" }, ...buttons),
  ];
}

/** Escape invisible characters and those that change the text direction, as the gateway does for platforms. */
function visible(text) {
  const escape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(/(?![\n ])[\p{C}\p{Z}\p{DI}\u2800]/gu, (character) => character.split("").map(escape).join(""));
}

function outcome({ toolName, decision }) {
  return h("p", {}, h("code", {}, toolName), ` ${OUTCOMES[decision] ?? decision}`);
}

function limit(timeoutMs) {
  return timeoutMs ? ` · within ${duration(timeoutMs)}` : "";
}

customElements.define("tl-approval", ApprovalCard);
