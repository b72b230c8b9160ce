/**
 * Keyboard shortcuts. A screen registers its own with `context.keys`; they act unless the user types, holds a
 * modifier, or has a dialog open.
 *
 * @typedef {Record<string, {label: string, act: () => void}>} Keys by the key, in lower case
 */
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

/** @type {Keys} */
let screenKeys = {};
/** @type {Keys} */
let frameKeys = {};

/** @param {Keys} keys of the frame */
export function listenToKeys(keys) {
  frameKeys = keys;
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    const isSearch = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k";
    if (isSearch) return act(event, frameKeys["ctrl+k"]);
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    act(event, screenKeys[key] ?? frameKeys[key]);
  });
}

/** @param {Keys} keys of the screen that is shown */
export function setScreenKeys(keys) {
  screenKeys = keys;
}

export function openOverview() {
  const fixed = { j: { label: t("keys.next") }, k: { label: t("keys.previous") }, enter: { label: t("keys.open") }, esc: { label: t("keys.close") } };
  const rows = Object.entries({ ...frameKeys, ...fixed, ...screenKeys });
  const row = ([key, { label }]) => h("div", {}, h("dt", {}, h("kbd", {}, named(key))), h("dd", {}, label));
  openDialog(t("frame.shortcuts"), h("dl", { class: "keys" }, ...rows.map(row)));
}

function named(key) {
  return key.split("+").map((one) => one[0].toUpperCase() + one.slice(1)).join(" ");
}

function act(event, key) {
  if (!key) return;
  event.preventDefault();
  key.act();
}

function isTyping(target) {
  return target instanceof Element && target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]") !== null;
}
