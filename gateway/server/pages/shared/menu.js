/** Menu of actions or choices at a button. Arrow keys select, Escape closes; the focus returns to the button. */
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** The function that closes the open menu. */
let close = null;

/**
 * @typedef {object} Item
 * @property {string} label
 * @property {string} [icon]
 * @property {string} [note] a second line
 * @property {string} [keys]
 * @property {boolean} [danger]
 * @property {boolean} [checked] of one choice among several; undefined for an action
 * @property {() => void} act
 *
 * @param {HTMLElement} opener
 * @param {Item[]} items
 * @param {{title?: string, keys?: string[], look?: string, beside?: Element}} [how] `beside`: an element that has the
 *   menu at its right where there is room
 */
export function openMenu(opener, items, { title, keys = [], look = "", beside } = {}) {
  close?.(false);
  const menu = h("div", { class: `menu-panel ${look}`, role: "menu", "aria-label": title ?? opener.getAttribute("aria-label") });
  const choose = (item) => () => (close(true), item.act());
  const head = title && h("p", { class: "menu-title", "aria-hidden": "true" }, h("span", {}, title), ...keys.map((key) => h("kbd", {}, key)));
  if (head) menu.append(head);
  menu.append(...items.map((item) => entry(item, choose(item))));
  const outside = (event) => menu.contains(event.target) || close(false);
  close = (focus) => {
    close = null;
    menu.remove();
    opener.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, { capture: true });
    if (focus) opener.focus();
  };
  menu.addEventListener("keydown", (event) => pressed(event, menu));
  opener.closest("nav, header, main").append(menu);
  opener.setAttribute("aria-expanded", "true");
  addEventListener("pointerdown", outside, { capture: true });
  place(menu, opener.getBoundingClientRect(), beside?.getBoundingClientRect());
  (menu.querySelector("[aria-checked=true]") ?? menu.querySelector("button")).focus();
}

function entry({ label, icon: name, note, keys, danger, checked }, act) {
  const role = checked === undefined ? "menuitem" : "menuitemradio";
  return h("button", { type: "button", role, "aria-checked": checked === undefined ? null : String(checked), tabindex: "-1", class: danger && "bad", onclick: act }, name && icon(name), h("span", {}, label, note && h("small", {}, note)), keys && h("kbd", { "aria-hidden": "true" }, keys));
}

function pressed(event, menu) {
  const entries = [...menu.querySelectorAll("button")];
  const at = entries.indexOf(document.activeElement);
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1 + entries.length, Home: 0, End: entries.length - 1 };
  if (event.key in steps) entries[steps[event.key] % entries.length].focus();
  else if (event.key === "Escape" || event.key === "Tab") close(true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Place the menu beside an element; else below its button, or above it where there is no room. */
function place(menu, { left, right, top, bottom }, beside) {
  const { offsetWidth, offsetHeight } = menu;
  if (beside && beside.right + offsetWidth + 20 <= innerWidth) {
    menu.style.left = `${beside.right + 12}px`;
    menu.style.top = `${Math.max(8, Math.min(beside.top, innerHeight - offsetHeight - 8))}px`;
    return;
  }
  const fits = bottom + offsetHeight + 8 < innerHeight;
  menu.style.left = `${Math.max(8, Math.min(left, innerWidth - offsetWidth - 8, Math.max(right - offsetWidth, left)))}px`;
  menu.style.top = `${Math.max(8, fits ? bottom + 4 : top - offsetHeight - 4)}px`;
}
