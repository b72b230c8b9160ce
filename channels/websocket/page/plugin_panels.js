/** `<tl-panels>`: the panels of plugins, each closed until the user opens it. */
import { h, reconcile } from "/shared/dom.js";
import { renderedBlock } from "/shared/safe_html.js";

/** The HTML that each panel shows. */
const shown = new WeakMap();

export class PluginPanels extends HTMLElement {
  #shown = null;

  /** @param {readonly {plugin: string, blocks: readonly string[]}[]} panels */
  render(panels) {
    if (this.#shown === panels) return;
    this.#shown = panels;
    this.hidden = panels.length === 0;
    reconcile(this, panels, ({ plugin }) => plugin, create, update);
  }
}

function create({ plugin }) {
  return h("details", {}, h("summary", {}, plugin), h("div", { class: "prose" }));
}

function update(panel, { blocks }) {
  const html = blocks.join("");
  if (shown.get(panel) === html) return;
  shown.set(panel, html);
  panel.lastElementChild.replaceChildren(renderedBlock(html));
}

customElements.define("tl-panels", PluginPanels);
