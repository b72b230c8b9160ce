/** `<tl-attachments>`: the pictures that go with the message being written. Tells of every change with `changed`. */
import { h } from "./dom.js";
import { size } from "./figures.js";
import { icon } from "./icons.js";
import { pictureFrom } from "./picture_file.js";

/** All pictures of one message together, as base64: a frame of the wire may not be larger than 1 MB. */
const BUDGET = 700_000;

export class Attachments extends HTMLElement {
  /** @type {object[]} image parts */
  parts = [];

  /** Add pictures. @param {File[]} files @returns {Promise<string>} what could not be added and why, or "" */
  async add(files) {
    const refusals = [];
    for (const file of files) refusals.push(await this.#addOne(file));
    this.#show();
    return refusals.filter(Boolean).join(" ");
  }

  clear() {
    this.parts = [];
    this.#show();
  }

  async #addOne(file) {
    if (!file.type.startsWith("image/")) return `${file.name} is not a picture; only pictures can be attached.`;
    const left = BUDGET - this.parts.reduce((sum, part) => sum + part.data.length, 0);
    const part = await pictureFrom(file, left);
    if (part === null) return `${file.name} does not fit: the pictures of one message may have ${size(BUDGET)} together.`;
    this.parts = [...this.parts, part];
    return "";
  }

  #show() {
    this.hidden = this.parts.length === 0;
    this.replaceChildren(...this.parts.map((part) => this.#thumbnail(part)));
    this.dispatchEvent(new CustomEvent("changed"));
  }

  #thumbnail(part) {
    const drop = () => {
      this.parts = this.parts.filter((held) => held !== part);
      this.#show();
    };
    return h(
      "span",
      { class: "thumbnail" },
      h("img", { src: `data:${part.mime_type};base64,${part.data}`, alt: part.alt_text }),
      h("button", { type: "button", "aria-label": `Remove ${part.alt_text}`, onclick: drop }, icon("cross")),
    );
  }
}

customElements.define("tl-attachments", Attachments);
