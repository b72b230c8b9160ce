/** `<tl-pending>`: a user message that the server has not confirmed, or has refused. */
import { attachmentView } from "./attachment_view.js";
import { announce } from "/shared/announcer.js";
import { copyButton } from "/shared/copy_button.js";
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
    const footer = this.#footer(entry);
    this.replaceChildren(h("div", { class: "body" }, typed, ...pictures), footer);
    if (entry.failed) announce([footer.firstElementChild]);
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
      entry.text && copyButton(t("message.copy"), () => entry.text),
    );
  }
}

customElements.define("tl-pending", PendingView);
