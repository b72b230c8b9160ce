/** Menu of actions below a button. Arrow keys select, Escape closes; the focus returns to the button. */
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** The function that closes the open menu. */
let close = null;

/**
 * @param {HTMLElement} opener
 * @param {{label: string, icon: string, keys?: string, danger?: boolean, act: () => void}[]} items
 */
export function openMenu(opener, items) {
  close?.(false);
  const menu = h("div", { class: "menu-panel", role: "menu", "aria-label": opener.getAttribute("aria-label") });
  const choose = (item) => () => (close(true), item.act());
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
  place(menu, opener.getBoundingClientRect());
  menu.firstElementChild.focus();
}

function entry({ label, icon: name, keys, danger }, act) {
  return h("button", { type: "button", role: "menuitem", tabindex: "-1", class: danger && "bad", onclick: act }, icon(name), h("span", {}, label), keys && h("kbd", { "aria-hidden": "true" }, keys));
}

function pressed(event, menu) {
  const entries = [...menu.children];
  const at = entries.indexOf(document.activeElement);
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1 + entries.length, Home: 0, End: entries.length - 1 };
  if (event.key in steps) entries[steps[event.key] % entries.length].focus();
  else if (event.key === "Escape" || event.key === "Tab") close(true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Place the menu below its button, or above it where there is no room. */
function place(menu, { left, right, top, bottom }) {
  const { offsetWidth, offsetHeight } = menu;
  const fits = bottom + offsetHeight + 8 < innerHeight;
  menu.style.left = `${Math.max(8, Math.min(left, innerWidth - offsetWidth - 8, Math.max(right - offsetWidth, left)))}px`;
  menu.style.top = `${Math.max(8, fits ? bottom + 4 : top - offsetHeight - 4)}px`;
}
