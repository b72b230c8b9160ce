/**
 * `<tl-task>`: the messages of a nested run, folded under the tool call that started it. Sends `watch` with itself
 * when it is opened; the page then sets its session and renders it with the thread of that session.
 */
import { h, reconcile } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";

export class TaskLog extends HTMLElement {
  /** Id of the tool call, to find the session of a run that has not ended. */
  call = "";
  #list = h("div", { class: "messages" });
  #open = h("a", { hidden: true }, t("task.open"));
  #thread = null;

  connectedCallback() {
    if (this.firstChild) return;
    const summary = h("summary", {}, icon("chevron"), h("span", {}, t("task.steps")));
    const details = h("details", { class: "folded" }, summary, this.#open, this.#list);
    details.addEventListener("toggle", () => details.open && this.dispatchEvent(new CustomEvent("watch", { bubbles: true, detail: this })));
    // These belong to the open session, and its messages are others.
    for (const name of ["fork", "ask-again", "why", "edit", "regenerate", "version", "decide"]) this.addEventListener(name, (event) => event.stopPropagation());
    this.append(details);
  }

  /** The session of the run that this one is shown in; undefined for the open session. */
  get parent() {
    return this.parentElement.closest("tl-task")?.dataset.session;
  }

  /** @param {import("./thread_state.js").Thread | undefined} thread */
  render(thread) {
    if (!thread || thread === this.#thread) return;
    this.#thread = thread;
    this.#open.href = `#/s/${encodeURIComponent(this.dataset.session)}`;
    this.#open.hidden = false;
    const messages = thread.order.map((id) => thread.messages[id]).filter((message) => !message.hidden);
    reconcile(this.#list, messages, (message) => message.id, () => h("tl-message"), (element, message) => element.render(message));
  }
}

customElements.define("tl-task", TaskLog);
