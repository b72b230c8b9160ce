/** Building elements. Text stays text: there is no way to pass HTML here. */

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` functions are listeners; false, null and undefined are left out
 * @param {...(Node | string | null | undefined | false)} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter(Boolean));
  return element;
}
