/** The key that sends a message: Enter, or Ctrl+Enter (also Cmd+Enter) so that Enter breaks the line. */

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
  try {
    return localStorage.getItem(KEY) === "ctrl" ? "ctrl" : "enter";
  } catch {
    return "enter";
  }
}
