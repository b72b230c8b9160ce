/**
 * `<tl-text>`: the text of a part. Finished blocks are inserted once and not changed; only the open tail
 * changes while text arrives.
 */
import { addCopyButtons } from "/shared/copy_button.js";
import { growText, h } from "/shared/dom.js";
import { renderedBlock } from "/shared/safe_html.js";

const OPEN_FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*(?:\n|$)/;

export class TextView extends HTMLElement {
  #shown = [];
  #tailText = document.createTextNode("");
  #tail = null;

  /** @param {import("./text_state.js").TextPart} part @returns {Element[]} the new blocks */
  render(part) {
    const fresh = this.#renderBlocks(part.blocks);
    this.#renderTail(part.tail.replace(/^(?:[ \t]*\n)+/, ""));
    return fresh;
  }

  #renderBlocks(blocks) {
    const kept = this.#shown.every((html, index) => blocks[index] === html) ? this.#shown.length : 0;
    if (kept === 0 && this.#shown.length > 0) this.replaceChildren(...(this.#tail ? [this.#tail] : []));
    const fresh = blocks.slice(kept).flatMap((html) => this.#insert(html));
    this.#shown = blocks;
    return fresh;
  }

  #insert(html) {
    const fragment = renderedBlock(html);
    const elements = [...fragment.children];
    elements.forEach(addCopyButtons);
    this.insertBefore(fragment, this.#tail);
    return elements;
  }

  /** Show an open fenced block as code already. */
  #renderTail(text) {
    const fence = OPEN_FENCE.exec(text);
    const kind = text.trim() === "" ? "" : fence ? `code ${fence[2]}` : "text";
    if (kind !== (this.#tail?.dataset.kind ?? "")) this.#replaceTail(kind, fence?.[2]);
    growText(this.#tailText, fence ? text.slice(fence[0].length) : text);
  }

  #replaceTail(kind, language) {
    this.#tail?.remove();
    this.#tail = kind === "" ? null : this.#newTail(kind, language);
    if (this.#tail) this.append(this.#tail);
  }

  #newTail(kind, language) {
    this.#tailText = document.createTextNode("");
    if (kind === "text") return h("p", { class: "tail", dir: "auto", "data-kind": kind }, this.#tailText);
    const caption = h("figcaption", {}, h("span", {}, language || "text"));
    return h("figure", { class: "code tail", "data-kind": kind }, caption, h("pre", {}, h("code", {}, this.#tailText)));
  }
}

customElements.define("tl-text", TextView);
