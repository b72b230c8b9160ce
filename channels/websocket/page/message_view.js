/**
 * `<tl-message>`: one message of the log. Redraws only the parts whose objects changed, and returns the new
 * finished blocks for the screen reader.
 */
import "./approval_card.js";
import { attachmentView } from "./attachment_view.js";
import "./change_list.js";
import { copyButton } from "/shared/copy_button.js";
import { clockTime, fullTime } from "/shared/dates.js";
import { h, notTwice, reconcile } from "/shared/dom.js";
import { duration, usageLine } from "/shared/figures.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openVersions } from "./late.js";
import { itemsOf } from "./message_items.js";
import { authorOf, plainText } from "./message_state.js";
import { errorView, fileView, foldedText } from "./part_views.js";
import { sends } from "./send_key.js";
import "./text_view.js";
import "./tool_panel.js";

const WHO = { user: t("who.user"), assistant: t("who.assistant"), system: t("who.system") };
const CUT = { max_tokens: t("message.cut") };

export class MessageView extends HTMLElement {
  #message = null;
  #body = h("div", { class: "body" });
  #changes = h("tl-changes");
  #footer = h("footer");
  #time = h("time");
  #figures = h("span");
  #again = actionButton("again", t("message.again"), () => this.#emit("regenerate", this.#message.id));
  #places = h("span", { class: "versions", role: "group", "aria-label": t("message.versions"), hidden: true });
  #form = null;
  /** What had the focus before the form. */
  #opener = null;
  /** Whether the text of the form was sent, and not refused so far. */
  #sent = false;
  /** The versions that begin here, if there are several. @type {import("./api.js").Version[] | null} */
  versions = null;

  /**
   * @param {import("./message_state.js").Message} message
   * @param {import("./api.js").Version[]} [versions]
   * @returns {Element[]} new finished blocks
   */
  render(message, versions = null) {
    if (this.versions !== versions) this.#renderVersions(versions);
    if (this.#message === message) return [];
    if (this.#message === null) this.#build(message);
    this.#message = message;
    this.dataset.status = message.status;
    const fresh = [];
    const items = itemsOf(message);
    reconcile(this.#body, items, (item) => `${item.key}-${item.type}`, create, (element, item) => fresh.push(...update(element, item, message)));
    this.#body.toggleAttribute("data-thinking", message.status === "running" && !items.some(isVisible));
    this.#changes.render(message);
    this.#renderFooter(message);
    return fresh;
  }

  #build(message) {
    const { id, role, origin } = message;
    const author = authorOf(message);
    const label = origin?.context ? t("message.earlier", { author }) : author || WHO[role];
    this.dataset.role = role;
    this.dataset.id = id;
    if (message.color) this.dataset.color = message.color;
    this.toggleAttribute("data-context", Boolean(origin?.context));
    this.setAttribute("role", "article");
    this.setAttribute("aria-label", label);
    const copy = copyButton(t("message.copy"), () => plainText(this.#message));
    const fork = actionButton("fork", t("message.fork"), () => this.#emit("fork", this.#message.id));
    const edit = actionButton("edit", t("message.edit"), () => this.edit());
    const own = role === "assistant" ? [this.#places, copy, this.#again, fork] : role === "user" && !origin ? [edit, copy, this.#places] : [copy];
    this.#footer.append(...own, this.#time, this.#figures);
    for (const name of ["ask-again", "why"]) this.addEventListener(name, (event) => {
      if (event.detail !== null) return;
      event.stopPropagation();
      this.#emit(name, this.#message.id);
    });
    this.append(h("h2", { class: author ? "author" : "offscreen" }, author || WHO[role]), this.#body, this.#changes, this.#footer);
  }

  /** The text of the open form, unless it was sent; null without one. @returns {string | null} */
  get unsent() {
    return this.#form === null || this.#sent ? null : this.#form.firstElementChild.value;
  }

  /** Let the user write another text in place of this message. @param {string} [kept] a text that was written before */
  edit(kept) {
    if (this.#form === null) {
      this.#opener = document.activeElement;
      const field = h("textarea", { rows: "3", dir: "auto", "aria-label": t("message.edited") });
      field.value = kept ?? plainText(this.#message);
      const cancel = h("button", { type: "button", onclick: () => this.#closeForm() }, t("dialog.cancel"));
      this.#form = h("form", { class: "edit-form" }, field, h("div", { class: "line" }, cancel, h("button", { type: "submit", class: "primary", onclick: notTwice(() => {}) }, t("composer.send"))));
      this.#form.addEventListener("submit", (event) => this.#submit(event, field.value.trim()));
      this.#form.addEventListener("keydown", (event) => this.#pressed(event));
      this.#body.hidden = true;
      this.#body.after(this.#form);
    }
    if (kept === undefined) this.#form.firstElementChild.focus();
  }

  /** Show the version before (-1) or after (1) the shown one. */
  showVersion(step) {
    const at = this.versions.findIndex((version) => version.shown) + step;
    if (at in this.versions) this.#emit("version", this.versions[at].id);
  }

  /** The form stays until the log comes without this message: a refused text is not lost. */
  #submit(event, text) {
    event.preventDefault();
    if (!text || this.#sent) return;
    this.#sent = true;
    this.#emit("edit", { id: this.#message.id, text, refused: (session) => this.#refused(session, text) });
  }

  #refused(session, text) {
    this.#sent = false;
    // Another change of the log came first.
    if (!this.isConnected) document.dispatchEvent(new CustomEvent("unsent", { detail: { session, text } }));
  }

  #pressed(event) {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Escape") event.stopPropagation(), this.#closeForm();
    else if (sends(event)) event.preventDefault(), this.#form.requestSubmit();
  }

  #closeForm() {
    this.#form.remove();
    this.#form = null;
    this.#body.hidden = false;
    this.#opener.focus();
  }

  #renderVersions(versions) {
    this.versions = versions;
    this.#places.hidden = versions === null;
    if (versions === null) return;
    const at = versions.findIndex((version) => version.shown);
    const back = h("button", { type: "button", class: "quiet", "aria-label": t("message.previous"), title: t("message.previous"), disabled: at === 0 }, "‹");
    const on = h("button", { type: "button", class: "quiet", "aria-label": t("message.next"), title: t("message.next"), disabled: at === versions.length - 1 }, "›");
    const list = h("button", { type: "button", class: "quiet", "aria-haspopup": "menu", "aria-expanded": "false" }, t("message.version", { at: at + 1, count: versions.length }));
    back.addEventListener("click", () => this.showVersion(-1));
    on.addEventListener("click", () => this.showVersion(1));
    list.addEventListener("click", () => openVersions(list, versions, (id) => this.#emit("version", id)));
    const focused = [...this.#places.children].indexOf(document.activeElement);
    this.#places.replaceChildren(back, list, on);
    const again = this.#places.children[focused];
    if (again) (again.disabled ? list : again).focus();
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  }

  #renderFooter(message) {
    this.#again.hidden = !message.stopReason;
    const { model, duration_ms } = message.metadata;
    const at = message.createdAt;
    this.#time.textContent = at ? clockTime(at) : "";
    if (at) this.#time.title = fullTime(at);
    if (at) this.#time.dateTime = new Date(at).toISOString();
    const wait = message.rateLimit ? waiting(message.rateLimit) : "";
    const facts = message.role === "assistant" ? [model, usageLine(message.metadata), duration_ms ? duration(duration_ms) : ""] : [];
    const state = message.queued ? t("message.queued") : stoppedText(message);
    this.#figures.textContent = [wait, state, ...facts].filter(Boolean).join(" · ");
  }
}

function actionButton(name, label, act) {
  const button = h("button", { type: "button", class: `copy ${name} quiet`, "aria-label": label, title: label }, icon(name));
  button.addEventListener("click", notTwice(act));
  return button;
}

/** A failed answer also ends as "cancelled"; it was not stopped by the user if it has an error. */
function stoppedText({ stopReason, parts }) {
  if (stopReason !== "cancelled") return CUT[stopReason];
  return parts.some((part) => part?.type === "error") ? "" : t("message.stopped");
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
    case "text-quote":
      return h("blockquote", { class: "quoted" });
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
    case "text-quote":
      element.textContent = part.text;
      return [];
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
  element.dir = "auto";
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
  return retry_after_ms ? t("message.limited", { provider, time: duration(retry_after_ms) }) : t("message.turn", { provider });
}
