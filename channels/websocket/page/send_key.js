/**
 * The key that sends a message: Enter, or Ctrl+Enter (also Cmd+Enter) so that Enter breaks the line. On a phone Enter
 * breaks the line unless the user chose otherwise: its keyboard has no Shift+Enter, and a button sends.
 */

import { choice, choose } from "/shared/choices.js";

const KEY = "trunkline.send_key";
let chosen = stored();

/** @returns {"enter" | "ctrl"} */
export function sendKey() {
  return chosen;
}

/** Use a key and keep the choice. @param {"enter" | "ctrl"} key */
export function chooseSendKey(key) {
  chosen = key;
  choose(KEY, key);
  document.dispatchEvent(new CustomEvent("sendkey"));
}

/** Return whether a key press sends the message. @param {KeyboardEvent} event */
export function sends(event) {
  if (event.key !== "Enter" || event.shiftKey || event.altKey) return false;
  return chosen === "enter" || event.ctrlKey || event.metaKey;
}

function stored() {
  const kept = choice(KEY);
  if (kept === "ctrl" || kept === "enter") return kept;
  return matchMedia("(pointer: coarse)").matches ? "ctrl" : "enter";
}
