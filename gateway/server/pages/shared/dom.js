/** Helpers for DOM elements. Strings become text nodes, never HTML. */

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` functions are listeners; false and undefined are left out
 * @param {...(Node | string | null | undefined | false)} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return a listener that ignores the second click of a double click. @param {(event: Event) => void} act what must not be done twice */
export function notTwice(act) {
  return (event) => {
    if (event.detail > 1) event.preventDefault();
    else act(event);
  };
}

/** Show one element in a host. If it is there, it stays attached, with the focus and the place to which it is scrolled. */
export function fill(host, element) {
  for (const child of [...host.childNodes]) if (child !== element) child.remove();
  if (element.parentNode !== host) host.append(element);
}

/** Set the content of a text node. If it only grew, append to it, so that a selection in it stays. */
export function growText(node, text) {
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/**
 * Make the children of `parent` match `items`, in order; elements whose key stays are reused.
 * @template T
 * @param {Element} parent
 * @param {readonly T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element} create
 * @param {(element: Element, item: T) => void} update
 */
export function reconcile(parent, items, keyOf, create, update) {
  const held = new Map(Array.from(parent.children, (child) => [child.dataset.key, child]));
  const wanted = new Set(items.map(keyOf));
  // First, because moving an element past a removed one would take the focus from it.
  for (const [key, element] of held) if (!wanted.has(key)) element.remove();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = held.get(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
}
