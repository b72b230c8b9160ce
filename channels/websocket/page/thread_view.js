/**
 * `<tl-thread>`: the messages of the open session. Scrolls with the newest text only while the user is at the
 * end; otherwise it shows a button that scrolls there. Sends `unsent` with the text of an edit whose message is gone, and
 * `compose` when the focus goes to the message field.
 */
import { announce } from "/shared/announcer.js";
import { dayName } from "/shared/dates.js";
import { h, reconcile } from "/shared/dom.js";
import { emptyState, missingState } from "./empty_state.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import "./message_view.js";
import "./pending_view.js";
import { showLoading } from "/shared/states.js";

const NEAR_END_PX = 32;
/** Milliseconds for which a message that the user was taken to is highlighted. */
const FOUND_MS = 3_000;

export class ThreadView extends HTMLElement {
  #list = h("div", { class: "messages" });
  #scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": t("thread.messages") });
  #jump = h("button", { type: "button", class: "jump", hidden: true, onclick: () => this.follow() }, icon("down"), t("thread.jump"));
  #thinking = h("div", { class: "thinking", role: "status", hidden: true }, h("span", { class: "offscreen" }, t("thread.thinking")), h("i"), h("i"), h("i"));
  #empty = emptyState();
  #missing = missingState();
  #waiting = h("div", { class: "waiting" });
  #more = h("button", { type: "button", onclick: () => this.#fetch(false) });
  #begin = h("p", { tabindex: "-1" }, t("thread.begin"));
  #earlier = h("div", { class: "earlier", hidden: true }, this.#more, this.#begin);
  /** Ends the still bars of a conversation that is loading; null if none is. */
  #endLoading = null;
  #following = true;
  /** The message that the user was taken to; it stays in place while it is highlighted. */
  #revealed = null;
  /** The message that keeps its place on the screen until the user scrolls, after others were inserted. */
  #kept = null;
  #lastTop = 0;
  /** Texts of open edits, by message, while another session is shown. @type {Map<string, {session: string, text: string}>} */
  #edits = new Map();
  #shown = {};

  connectedCallback() {
    if (this.firstChild) return;
    const column = h("div", { class: "column" }, this.#empty, this.#missing, this.#waiting, this.#earlier, this.#list, this.#thinking);
    this.#scroller.append(column);
    this.append(this.#scroller, this.#jump);
    this.#scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#scroller.addEventListener("click", (event) => event.target.closest("summary") && this.#letGo());
    new ResizeObserver(() => this.#resized()).observe(column);
  }

  /** @param {{session: string | null, thread?: import("./thread_state.js").Thread, outbox: readonly object[], branches?: Record<string, import("./api.js").Version[]>}} props */
  render(props) {
    const { session, thread, outbox, branches } = props;
    const before = this.#shown;
    if (before.session === session && before.thread === thread && before.outbox === outbox && before.branches === branches) return;
    this.#shown = props;
    if (before.session !== session) this.#enter(before.session);
    const fetched = before.session === session && isFetching(before.thread) && !isFetching(thread);
    if (fetched && !this.#following) this.#keep();
    announce(this.#renderList(thread, outbox.filter((entry) => entry.session === session)));
    this.#renderEarlier(thread);
    if (fetched) this.#fetched(before.thread, thread);
    this.#empty.hidden = this.#list.childElementCount > 0 || (session !== null && !thread?.loaded) || Boolean(thread?.missing);
    this.#missing.hidden = !thread?.missing;
    this.#thinking.hidden = !thread?.awaiting;
    this.#showLoading(session !== null && !thread?.loaded && !thread?.missing && this.#list.childElementCount === 0);
  }

  #showLoading(loading) {
    if (loading === (this.#endLoading !== null)) return;
    this.#endLoading?.();
    this.#endLoading = loading ? showLoading(this.#waiting) : null;
  }

  /** Scroll to the end and follow it. */
  follow() {
    this.#following = true;
    this.#toEnd();
    this.#jump.hidden = true;
  }

  /** Scroll to a message, focus it, and highlight it for a moment. */
  reveal(id) {
    const message = [...this.#list.children].find((child) => child.dataset.id === id);
    if (!message) return;
    this.#following = false;
    this.#revealed = message;
    message.tabIndex = -1;
    message.focus({ preventScroll: true });
    message.toggleAttribute("data-found", true);
    this.#toRevealed();
    setTimeout(() => {
      message.removeAttribute("data-found");
      if (this.#revealed === message) this.#revealed = null;
    }, FOUND_MS);
  }

  /** Edit the user's last message. */
  editLast() {
    // Not one of a nested run, and none of another person.
    [...this.#list.children].findLast((child) => child.querySelector(":scope > footer > .edit"))?.edit();
  }

  /** Show the version before or after the shown one, of the message that has the focus, else of the last one that has versions. */
  showVersion(step) {
    const focused = document.activeElement?.closest("tl-message");
    const message = focused?.versions ? focused : [...this.#list.children].findLast((child) => child.versions);
    message?.showVersion(step);
  }

  #toRevealed() {
    this.#revealed?.scrollIntoView({ block: "center" });
  }

  #resized() {
    if (this.#following) this.#toEnd();
    else if (this.#revealed) this.#toRevealed();
    else if (this.#kept?.message.isConnected) this.#toKept();
  }

  /** Keep the first visible message where it is. */
  #keep() {
    const message = [...this.#list.children].find((child) => child.dataset.id && this.#topOf(child) + child.clientHeight > 0);
    this.#kept = message ? { message, top: this.#topOf(message) } : null;
  }

  #toKept() {
    this.#scroller.scrollTop += this.#topOf(this.#kept.message) - this.#kept.top;
    this.#lastTop = this.#scroller.scrollTop;
  }

  #topOf(message) {
    return message.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top;
  }

  #fetch(inGap) {
    this.dispatchEvent(new CustomEvent("earlier", { bubbles: true, detail: inGap }));
  }

  #renderEarlier(thread) {
    const { earlier = null, fetching } = thread ?? {};
    // The focus goes with the button, unless it finds a place first.
    if (earlier !== true && document.activeElement === this.#more) this.#begin.hidden = false, this.#begin.focus({ preventScroll: true });
    this.#earlier.hidden = earlier === null;
    this.#more.hidden = earlier !== true;
    this.#begin.hidden = earlier !== false;
    this.#more.textContent = t(fetching === "earlier" ? "thread.fetching" : "thread.earlier");
    this.#more.setAttribute("aria-disabled", String(isFetching(thread)));
  }

  /** Say what was fetched, and stay at the message that was read. */
  #fetched(before, { order, gap }) {
    const known = new Set(before.order);
    const fresh = order.filter((id) => !known.has(id));
    if (fresh.length) announce([h("p", {}, t("thread.found", { count: fresh.length }))]);
    // The button in the gap is gone, and reading goes on after it.
    if (before.gap !== gap && document.activeElement === document.body) this.#focus(fresh[0]);
    if (this.#kept) this.#toKept();
  }

  #focus(id) {
    const message = [...this.#list.children].find((child) => child.dataset.id === id);
    message?.setAttribute("tabindex", "-1");
    message?.focus({ preventScroll: true });
  }

  /** Focus the message that took the place of the focused one; if there is none, or it was being edited, the message field. */
  #focusInstead(message) {
    if (!message?.matches("tl-message")) return this.dispatchEvent(new CustomEvent("compose", { bubbles: true }));
    message.tabIndex = -1;
    message.focus({ preventScroll: true });
  }

  #enter(left) {
    for (const { id, unsent } of this.#openEdits()) this.#edits.set(id, { session: left, text: unsent });
    this.#revealed = this.#kept = null;
    this.#list.replaceChildren();
    this.follow();
  }

  #openEdits() {
    const open = [...this.#list.children].filter((child) => typeof child.unsent === "string");
    return open.map((child) => ({ id: child.dataset.id, unsent: child.unsent }));
  }

  /** Open the edits of this session again; the text of one whose message is gone is not lost. */
  #restoreEdits(thread) {
    for (const [id, { session, text }] of thread?.loaded || thread?.missing ? this.#edits : []) {
      if (session !== this.#shown.session) continue;
      this.#edits.delete(id);
      const message = [...this.#list.children].find((child) => child.dataset.id === id);
      if (message) message.edit(text);
      else this.dispatchEvent(new CustomEvent("unsent", { bubbles: true, detail: { session: thread.missing ? null : session, text } }));
    }
  }

  /** Draw the messages. Return the new finished blocks. */
  #renderList(thread, pending) {
    const fresh = [];
    const focused = document.activeElement;
    const place = [...this.#list.children].findIndex((child) => child.contains(focused));
    for (const { id, unsent } of this.#openEdits()) if (!(id in (thread?.messages ?? {}))) this.#edits.set(id, { session: this.#shown.session, text: unsent });
    const messages = (thread?.order ?? []).map((id) => thread.messages[id]).filter((message) => !message.hidden);
    const items = [...withDays(messages, thread?.gap), ...pending];
    reconcile(
      this.#list,
      items,
      (item) => item.client_msg_id ?? item.id,
      (item) => this.#create(item),
      (element, item) => {
        if (item.day) return;
        const blocks = element.render(item, this.#shown.branches?.[item.id]);
        if (item.live) fresh.push(...blocks);
      },
    );
    this.#restoreEdits(thread);
    if (place >= 0 && !focused.isConnected) this.#focusInstead(focused.matches("textarea") ? null : this.#list.children[place]);
    return fresh;
  }

  #create({ day, id, client_msg_id: unsent }) {
    if (!day) return h(unsent ? "tl-pending" : "tl-message");
    return h("p", { class: "day" }, day, id === "gap" && h("button", { type: "button", onclick: () => this.#fetch(true) }, t("thread.fill")));
  }

  /** Stop following the end when the user scrolls up; follow it again when the end is reached. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END_PX) this.#following = true;
    else if (scrollTop < this.#lastTop) this.#following = false;
    if (scrollTop !== this.#lastTop) this.#kept = null;
    const { earlier, fetching } = this.#shown.thread ?? {};
    if (scrollTop < this.#lastTop && scrollTop < clientHeight && earlier && !fetching) this.#fetch(false);
    this.#lastTop = scrollTop;
    this.#jump.hidden = this.#following;
  }

  /** Stop following when the user opens something, so that it stays under the pointer while the page grows. */
  #letGo() {
    this.#following = false;
    requestAnimationFrame(() => requestAnimationFrame(() => this.#scrolled()));
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#list.childElementCount > 0 ? this.#scroller.scrollHeight : 0;
    this.#lastTop = this.#scroller.scrollTop;
  }
}

function isFetching(thread) {
  return thread?.fetching === "earlier" || thread?.fetching === "gap";
}

/** Put a heading before the first message of each day, and a line where messages are left out. */
function withDays(messages, gap) {
  let last = "";
  return messages.flatMap((message) => {
    const day = message.createdAt ? dayName(message.createdAt) : last;
    const items = day === last ? [message] : [{ id: `day-${day}`, day }, message];
    if (message.id === gap) items.push({ id: "gap", day: t("thread.gap") });
    last = day;
    return items;
  });
}

customElements.define("tl-thread", ThreadView);
