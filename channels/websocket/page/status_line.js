/** `<tl-status>`: status line with the segments of plugins. */
import { h } from "/shared/dom.js";

/** Colours that plugins may use; text with other colours has the default colour. */
const COLOURS = new Set(["red", "green", "yellow"]);

export class StatusLine extends HTMLElement {
  #shown = null;

  /** @param {readonly {text: string, color?: string, dim?: boolean}[]} segments */
  render(segments) {
    if (this.#shown === segments) return;
    this.#shown = segments;
    this.hidden = segments.length === 0;
    this.replaceChildren(...segments.map(segment));
  }
}

function segment({ text, color, dim }) {
  return h("span", { "data-color": COLOURS.has(color) && color, "data-dim": Boolean(dim) }, text);
}

customElements.define("tl-status", StatusLine);
