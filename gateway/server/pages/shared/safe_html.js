/**
 * The only place that inserts HTML into the page: blocks that the server rendered from Markdown without raw
 * HTML. Browsers with Trusted Types refuse every other assignment of HTML.
 */

const policy = globalThis.trustedTypes?.createPolicy("trunkline", { createHTML: (html) => html }) ?? {
  createHTML: (html) => html,
};

/** @param {string} html a finished block from the server @returns {DocumentFragment} */
export function renderedBlock(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  // Each begins on the side of its first letter: Arabic and Hebrew on the right.
  for (const block of template.content.children) block.dir = "auto";
  return template.content;
}
