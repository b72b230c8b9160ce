/**
 * The one door through which HTML enters the page: blocks that the server's renderer made from Markdown,
 * with raw HTML off. Browsers that know trusted types refuse every other assignment of HTML.
 */

const policy = globalThis.trustedTypes?.createPolicy("trunkline", { createHTML: (html) => html }) ?? {
  createHTML: (html) => html,
};

/** @param {string} html a finished block from the server @returns {DocumentFragment} */
export function renderedBlock(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}
