/**
 * The key that sends a message: Enter, or Ctrl+Enter (also Cmd+Enter) so that Enter breaks the line. On a phone Enter
 * breaks the line unless the user chose otherwise: its keyboard has no Shift+Enter, and a button sends.
 */

const KEY = "trunkline.send_key";
let chosen = stored();

/** @returns {"enter" | "ctrl"} */
export function sendKey() {
  return chosen;
}

/** Use a key and store the choice. @param {"enter" | "ctrl"} key */
export function chooseSendKey(key) {
  chosen = key;
  try {
    localStorage.setItem(KEY, key);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  document.dispatchEvent(new CustomEvent("sendkey"));
}

/** Return whether a key press sends the message. @param {KeyboardEvent} event */
export function sends(event) {
  if (event.key !== "Enter" || event.shiftKey || event.altKey) return false;
  return chosen === "enter" || event.ctrlKey || event.metaKey;
}

function stored() {
  const usual = matchMedia("(pointer: coarse)").matches ? "ctrl" : "enter";
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "ctrl" || kept === "enter" ? kept : usual;
  } catch {
    return usual;
  }
}
