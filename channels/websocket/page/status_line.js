/** `<tl-status>`: status line with the segments of plugins, in the language of the page if they have it. */
import { h } from "/shared/dom.js";
import { language } from "/shared/language.js";

/** Colours that plugins may use; text with other colours has the default colour. */
const COLOURS = new Set(["red", "green", "yellow"]);

export class StatusLine extends HTMLElement {
  #shown = null;

  /** @param {readonly {text: string, color?: string, dim?: boolean, texts?: Record<string, string>}[]} segments */
  render(segments) {
    if (this.#shown === segments) return;
    this.#shown = segments;
    this.hidden = segments.length === 0;
    this.replaceChildren(...segments.map(segment));
  }
}

function segment({ text, color, dim, texts = {} }) {
  return h("span", { "data-color": COLOURS.has(color) && color, "data-dim": Boolean(dim) }, texts[language] ?? text);
}

customElements.define("tl-status", StatusLine);
