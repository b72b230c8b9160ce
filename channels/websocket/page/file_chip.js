/** `<tl-chip>`: one file of the message that is being written: its picture or name, its progress, or why it was refused. */
import { attachmentView } from "./attachment_view.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";

/**
 * @typedef {object} Item a file
 * @property {string} key
 * @property {string} name
 * @property {string} mime_type
 * @property {string} preview a data URL, or ""
 * @property {"preparing" | "uploading" | "waiting" | "done" | "refused"} state `waiting` for the connection
 * @property {number} progress 0 to 1
 * @property {string} [id] of the upload
 * @property {string} [reason] of the refusal
 */

export class FileChip extends HTMLElement {
  #shown = null;
  #bar = h("progress", { max: "1" });

  /** @param {Item} item @param {() => void} onRemove */
  render(item, onRemove) {
    this.#bar.value = item.progress;
    if (this.#shown?.state === item.state && this.#shown.preview === item.preview) return;
    this.#shown = { ...item };
    this.className = "thumbnail";
    this.dataset.state = item.state;
    const button = this.querySelector("button") ?? h("button", { type: "button", "aria-label": t("file.remove", { name: item.name }), onclick: onRemove }, icon("cross"));
    this.replaceChildren(attachmentView(item), ...this.#note(item), button);
  }

  #note({ state, name, reason }) {
    if (state === "done") return [];
    if (state === "refused") return [h("span", { class: "reason", role: "alert" }, reason)];
    if (state === "waiting") return [h("span", { class: "reason", role: "status" }, t("file.waiting"))];
    this.#bar.setAttribute("aria-label", t("file.uploading", { name }));
    return [this.#bar];
  }
}

customElements.define("tl-chip", FileChip);
