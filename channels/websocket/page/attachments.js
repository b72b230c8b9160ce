/**
 * `<tl-attachments>`: attachments of the message that is being written: pictures, one recording, and other files,
 * which the server reads. Sends `changed`.
 */
import { attachmentView } from "./attachment_view.js";
import { base64, fits } from "./base64.js";
import { h } from "./dom.js";
import { size } from "./figures.js";
import { icon } from "./icons.js";
import { t } from "./language.js";
import { pictureFrom } from "./picture_file.js";

/** Most base64 characters of all attachments of a message; a websocket frame may have at most 1 MB. */
const BUDGET = 700_000;

export class Attachments extends HTMLElement {
  /** @type {object[]} image parts */
  parts = [];
  /** @type {{mime_type: string, data: string, name: string} | null} */
  audio = null;
  /** @type {{name: string, mime_type: string, data: string}[]} documents and text files */
  files = [];

  get isEmpty() {
    return this.parts.length === 0 && this.audio === null && this.files.length === 0;
  }

  /** Remaining base64 characters. */
  get left() {
    return BUDGET - [...this.parts, ...this.files, ...(this.audio ? [this.audio] : [])].reduce((sum, held) => sum + held.data.length, 0);
  }

  /** Add files. @param {File[]} files @returns {Promise<string>} which files could not be added and why, or "" */
  async add(files) {
    const refusals = [];
    for (const file of files) refusals.push(await this.#addOne(file));
    this.#show();
    return refusals.filter(Boolean).join(" ");
  }

  clear() {
    this.restore({ parts: [], audio: null, files: [] });
  }

  /** Show the attachments of a draft. */
  restore({ parts, audio, files }) {
    this.parts = parts;
    this.audio = audio;
    this.files = files;
    this.#show();
  }

  async #addOne(file) {
    if (file.type.startsWith("audio/")) return this.#addAudio(file);
    if (!file.type.startsWith("image/") || file.type.startsWith("image/svg")) return this.#addFile(file);
    const { part, refusal } = await pictureFrom(file, this.left);
    if (refusal === "unreadable") return t("file.unreadable", { name: file.name });
    if (refusal) return tooLarge(file);
    this.parts = [...this.parts, part];
    return "";
  }

  async #addAudio(file) {
    if (this.audio !== null) return t("file.second_recording", { name: file.name });
    if (!fits(file, this.left)) return tooLarge(file);
    this.audio = { mime_type: file.type.split(";")[0], data: await base64(file), name: file.name };
    return "";
  }

  async #addFile(file) {
    if (!fits(file, this.left)) return tooLarge(file);
    this.files = [...this.files, { name: file.name, mime_type: file.type, data: await base64(file) }];
    return "";
  }

  #show() {
    this.hidden = this.isEmpty;
    const pictures = this.parts.map((part) => this.#thumbnail(part, part.alt_text, () => (this.parts = this.parts.filter((held) => held !== part))));
    const recording = this.audio && this.#thumbnail(this.audio, this.audio.name, () => (this.audio = null));
    const files = this.files.map((file) => this.#thumbnail(file, file.name, () => (this.files = this.files.filter((held) => held !== file))));
    this.replaceChildren(...pictures, ...(recording ? [recording] : []), ...files);
    this.dispatchEvent(new CustomEvent("changed"));
  }

  #thumbnail(held, name, drop) {
    const dropped = () => {
      drop();
      this.#show();
    };
    return h(
      "span",
      { class: "thumbnail" },
      attachmentView(held),
      h("button", { type: "button", "aria-label": t("file.remove", { name }), onclick: dropped }, icon("cross")),
    );
  }
}

function tooLarge({ name }) {
  return t("file.too_large", { name, size: size(BUDGET) });
}

customElements.define("tl-attachments", Attachments);
