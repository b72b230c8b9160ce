/** `<tl-approval>`: a question, such as the approval of a tool, with buttons; after the answer it shrinks to a line. */
import { h, notTwice } from "/shared/dom.js";
import { duration } from "/shared/figures.js";
import { t } from "/shared/language.js";

const ON_ITS_WAY_MS = 3_000;
const OUTCOMES = { once: t("approval.was_once"), always: t("approval.was_always"), deny: t("approval.was_deny"), timeout: t("approval.was_timeout"), cancelled: t("approval.was_cancelled") };

export class ApprovalCard extends HTMLElement {
  #shown = null;
  #answeredAt = 0;

  constructor() {
    super();
    this.addEventListener("decide", (event) => this.#once(event), { capture: true });
  }

  /** Drop a second answer while the first one is on its way: the gateway would refuse it. */
  #once(event) {
    if (Date.now() - this.#answeredAt < ON_ITS_WAY_MS) event.stopImmediatePropagation();
    else this.#answeredAt = Date.now();
  }

  /** @param {import("./message_state.js").Approval} approval */
  render(approval) {
    if (this.#shown === approval) return;
    this.#shown = approval;
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", approval.title ? t("approval.question", { title: approval.title }) : t("approval.for", { tool: approval.toolName }));
    this.toggleAttribute("data-decided", approval.decision !== null);
    const open = approval.title ? form : question;
    this.replaceChildren(...(approval.decision === null ? open(approval) : [outcome(approval)]));
  }
}

function question({ id, toolName, timeoutMs, always, reason, arguments: given }) {
  const choices = [["once", t("approval.once"), "primary"], ["deny", t("approval.deny"), ""]];
  // The button "Always" names its scope.
  if (always) choices.splice(1, 0, ["always", t("approval.always", { always }), ""]);
  const decide = (decision) => (event) =>
    event.target.dispatchEvent(new CustomEvent("decide", { bubbles: true, detail: { id, decision } }));
  const buttons = choices.map(([value, label, look]) => h("button", { type: "button", class: look, onclick: notTwice(decide(value)) }, label));
  return [
    h("p", {}, h("code", {}, toolName), ` ${t("approval.asks")}`, h("span", { class: "muted" }, limit(timeoutMs))),
    ...(reason ? [h("p", {}, reason)] : []),
    h("pre", { tabindex: "0", "aria-label": t("approval.wants") }, visible(typeof given === "string" ? given : JSON.stringify(given, null, 2))),
    h("div", { class: "choices" }, ...buttons),
  ];
}

/** Return a general question: buttons, or boxes with a button, and a field where a text is an answer. */
function form({ id, title, detail, choices, multiple, freeText, timeoutMs }) {
  const answer = (target, decision) => target.dispatchEvent(new CustomEvent("decide", { bubbles: true, detail: { id, decision } }));
  const name = (choice) => choice.label || choice.value;
  const boxes = choices.map((choice) => h("input", { type: "checkbox", value: choice.value }));
  const field = h("input", { type: "text", maxlength: "4000", "aria-label": choices.length ? t("approval.own") : t("approval.answer_field") });
  const submit = (event) => {
    event.preventDefault();
    const picked = multiple ? boxes.filter((box) => box.checked).map((box) => box.value) : [];
    const typed = freeText ? field.value.trim() : "";
    if (typed) picked.push(typed);
    if (picked.length) answer(event.target, picked);
  };
  const press = (choice) => h("button", { type: "button", class: choice.style === "good" ? "primary" : "", onclick: notTwice((event) => answer(event.target, [choice.value])) }, name(choice));
  const box = (choice, index) => h("label", {}, boxes[index], " ", name(choice), choice.description ? `: ${choice.description}` : "");
  const described = multiple ? [] : choices.filter((choice) => choice.description);
  return [
    h("p", {}, h("strong", {}, title), h("span", { class: "muted" }, limit(timeoutMs))),
    ...(detail ? [h("p", { class: "detail" }, detail)] : []),
    ...(described.length ? [h("ul", {}, ...described.map((choice) => h("li", {}, `${name(choice)}: ${choice.description}`)))] : []),
    ...(!multiple && choices.length ? [h("div", { class: "choices" }, ...choices.map(press))] : []),
    ...(multiple || freeText ? [h("form", { onsubmit: submit }, ...(multiple ? choices.map(box) : []), ...(freeText ? [field] : []), h("button", { class: "primary", onclick: notTwice(() => {}) }, t("approval.answer")))] : []),
  ];
}

/** Escape invisible characters and those that change the text direction, as the gateway does for platforms. */
function visible(text) {
  const escape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(/(?![\n ])[\p{C}\p{Z}\p{DI}\u2800]/gu, (character) => character.split("").map(escape).join(""));
}

function outcome({ toolName, title, decision }) {
  if (title) return h("p", {}, h("strong", {}, title), ` ${OUTCOMES[decision] ?? decision}`);
  return h("p", {}, h("code", {}, toolName), ` ${OUTCOMES[decision] ?? decision}`);
}

function limit(timeoutMs) {
  return timeoutMs ? ` · ${t("approval.within", { time: duration(timeoutMs) })}` : "";
}

customElements.define("tl-approval", ApprovalCard);
