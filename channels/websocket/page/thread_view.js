/**
 * `<tl-thread>`: the messages of the open session. Scrolls with the newest text only while the user is at the
 * end; otherwise it shows a button that scrolls there.
 */
import { announce } from "./announcer.js";
import { h, reconcile } from "./dom.js";
import { emptyState, missingState } from "./empty_state.js";
import { icon } from "./icons.js";
import "./message_view.js";
import "./pending_view.js";

const NEAR_END_PX = 32;

export class ThreadView extends HTMLElement {
  #list = h("div", { class: "messages" });
  #scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Messages" });
  #jump = h("button", { type: "button", class: "jump", hidden: true, onclick: () => this.follow() }, icon("down"), "Jump to latest");
  #thinking = h("div", { class: "thinking", role: "status", hidden: true }, h("span", { class: "offscreen" }, "The assistant is thinking"), h("i"), h("i"), h("i"));
  #empty = emptyState();
  #missing = missingState();
  #following = true;
  #lastTop = 0;
  #shown = {};

  connectedCallback() {
    if (this.firstChild) return;
    const column = h("div", { class: "column" }, this.#empty, this.#missing, this.#list, this.#thinking);
    this.#scroller.append(column);
    this.append(this.#scroller, this.#jump);
    this.#scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#scroller.addEventListener("click", (event) => event.target.closest("summary") && this.#letGo());
    new ResizeObserver(() => this.#following && this.#toEnd()).observe(column);
  }

  /** @param {{session: string | null, thread?: import("./thread_state.js").Thread, outbox: readonly object[]}} props */
  render(props) {
    const { session, thread, outbox } = props;
    const before = this.#shown;
    if (before.session === session && before.thread === thread && before.outbox === outbox) return;
    this.#shown = props;
    if (before.session !== session) this.#enter();
    announce(this.#renderList(thread, outbox.filter((entry) => entry.session === session)));
    this.#empty.hidden = this.#list.childElementCount > 0 || (session !== null && !thread?.loaded) || Boolean(thread?.missing);
    this.#missing.hidden = !thread?.missing;
    this.#thinking.hidden = !thread?.awaiting;
  }

  /** Scroll to the end and follow it. */
  follow() {
    this.#following = true;
    this.#toEnd();
    this.#jump.hidden = true;
  }

  #enter() {
    this.#list.replaceChildren();
    this.follow();
  }

  /** Draw the messages. Return the new finished blocks. */
  #renderList(thread, pending) {
    const fresh = [];
    const messages = (thread?.order ?? []).map((id) => thread.messages[id]).filter((message) => !message.hidden);
    const items = [...messages, ...pending];
    reconcile(
      this.#list,
      items,
      (item) => item.client_msg_id ?? item.id,
      (item) => h(item.client_msg_id ? "tl-pending" : "tl-message"),
      (element, item) => {
        const blocks = element.render(item);
        if (item.live) fresh.push(...blocks);
      },
    );
    return fresh;
  }

  /** Stop following the end when the user scrolls up; follow it again when the end is reached. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END_PX) this.#following = true;
    else if (scrollTop < this.#lastTop) this.#following = false;
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

customElements.define("tl-thread", ThreadView);
