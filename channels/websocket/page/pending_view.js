/** `<tl-pending>`: a user message that the server has not confirmed, or has refused. */
import { attachmentView } from "./attachment_view.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

export class PendingView extends HTMLElement {
  #shown = null;

  /** @param {import("./state.js").OutboxEntry} entry */
  render(entry) {
    if (this.#shown?.failed === entry.failed && this.#shown !== null) return [];
    this.#shown = entry;
    this.dataset.role = "user";
    this.dataset.id = entry.client_msg_id;
    this.setAttribute("role", "article");
    this.setAttribute("aria-label", t("who.user"));
    const attached = [...entry.parts, ...(entry.uploads ?? [])];
    const pictures = attached.map((part) => h("div", { class: "part-image" }, attachmentView(part)));
    const typed = entry.text && h("div", { class: "typed", dir: "auto" }, entry.text);
    this.replaceChildren(h("div", { class: "body" }, typed, ...pictures), this.#footer(entry));
    return [];
  }

  #footer(entry) {
    if (!entry.failed) return h("footer", {}, h("span", {}, t("pending.sending")));
    const act = (name) => () => this.dispatchEvent(new CustomEvent(name, { bubbles: true, detail: entry }));
    return h(
      "footer",
      { class: "failed" },
      h("span", {}, t("pending.failed", { reason: entry.failed })),
      h("button", { type: "button", class: "quiet", onclick: act("retry") }, t("pending.again")),
      h("button", { type: "button", class: "quiet", onclick: act("discard") }, t("pending.discard")),
    );
  }
}

customElements.define("tl-pending", PendingView);
