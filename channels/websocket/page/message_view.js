/**
 * `<tl-message>`: one message of the log. Redraws only the parts whose objects changed, and returns the new
 * finished blocks for the screen reader.
 */
import "./approval_card.js";
import { attachmentView } from "./attachment_view.js";
import { copyButton } from "./copy_button.js";
import { h, reconcile } from "./dom.js";
import { duration, usageLine } from "./figures.js";
import { itemsOf } from "./message_items.js";
import { plainText } from "./message_state.js";
import { errorView, fileView, foldedText } from "./part_views.js";
import "./text_view.js";
import "./tool_panel.js";

const WHO = { user: "You", assistant: "Assistant", system: "Notice" };
const CUT = { max_tokens: "Cut off at the length limit" };

export class MessageView extends HTMLElement {
  #message = null;
  #body = h("div", { class: "body" });
  #footer = h("footer");
  #figures = h("span");

  /** @param {import("./message_state.js").Message} message @returns {Element[]} new finished blocks */
  render(message) {
    if (this.#message === message) return [];
    if (this.#message === null) this.#build(message);
    this.#message = message;
    this.dataset.status = message.status;
    const fresh = [];
    const items = itemsOf(message);
    reconcile(this.#body, items, (item) => `${item.key}-${item.type}`, create, (element, item) => fresh.push(...update(element, item, message)));
    this.#body.toggleAttribute("data-thinking", message.status === "running" && !items.some(isVisible));
    this.#renderFooter(message);
    return fresh;
  }

  #build({ id, role }) {
    this.dataset.role = role;
    this.dataset.id = id;
    this.setAttribute("role", "article");
    this.setAttribute("aria-label", WHO[role]);
    const copy = copyButton("Copy message", () => plainText(this.#message));
    this.#footer.append(copy, this.#figures);
    this.addEventListener("ask-again", (event) => {
      if (event.detail !== null) return;
      event.stopPropagation();
      this.dispatchEvent(new CustomEvent("ask-again", { bubbles: true, detail: this.#message.id }));
    });
    this.append(h("h2", { class: "offscreen" }, WHO[role]), this.#body, this.#footer);
  }

  #renderFooter(message) {
    const { model, duration_ms } = message.metadata;
    const wait = message.rateLimit ? waiting(message.rateLimit) : "";
    const facts = message.role === "assistant" ? [model, usageLine(message.metadata), duration_ms ? duration(duration_ms) : ""] : [];
    const state = message.queued ? "Queued" : stoppedText(message);
    this.#figures.textContent = [wait, state, ...facts].filter(Boolean).join(" · ");
  }
}

/** A failed answer also ends as "cancelled"; it was not stopped by the user if it has an error. */
function stoppedText({ stopReason, parts }) {
  if (stopReason !== "cancelled") return CUT[stopReason];
  return parts.some((part) => part?.type === "error") ? "" : "Stopped";
}

function isVisible(item) {
  return !["text-text", "text-notice"].includes(item.type) || item.part.length > 0;
}

function create({ type, part }) {
  switch (type) {
    case "text-text":
      return h("tl-text", { class: "prose" });
    case "text-notice":
      return h("tl-text", { class: "prose notice" });
    case "text-reasoning":
    case "text-summary":
      return foldedText(part.kind, h("tl-text", { class: "prose" }));
    case "tool":
      return h("tl-tool");
    case "approval":
      return h("tl-approval");
    default:
      return h("div", { class: `part-${type}` });
  }
}

/** Update an element from its item. Return the new finished blocks. */
function update(element, { type, part, run, approval }, message) {
  switch (type) {
    case "text-text":
      return message.role === "user" ? plain(element, part) : element.render(part);
    case "text-notice":
      return element.render(part);
    case "text-reasoning":
    case "text-summary":
      element.querySelector("tl-text").render(part);
      return [];
    case "tool":
      element.render(run);
      return [];
    case "approval":
      element.render(approval);
      return [];
    default:
      return whole(element, part);
  }
}

/** View of a user's text, shown as typed. */
function plain(element, part) {
  element.className = "typed";
  element.textContent = part.text;
  return [];
}

function whole(element, part) {
  if (element.shownPart === part) return [];
  element.shownPart = part;
  const view = part.type === "error" ? errorView(part) : part.type === "file" ? fileView(part) : attachmentView(part);
  element.replaceChildren(view);
  return [];
}

customElements.define("tl-message", MessageView);

/** Text for a wait for a provider's rate limit; 0 means that its duration is unknown. */
function waiting({ provider, retry_after_ms }) {
  return retry_after_ms ? `Rate limited by ${provider}, waits ${duration(retry_after_ms)}` : `Waits for its turn at ${provider}`;
}
