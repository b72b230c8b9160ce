/** Keys of the browser as the names that the gateway knows. */

const NAMES = {
  Enter: "enter",
  Tab: "tab",
  Escape: "escape",
  Backspace: "backspace",
  Delete: "delete",
  Insert: "insert",
  Home: "home",
  End: "end",
  PageUp: "pageup",
  PageDown: "pagedown",
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
};

/**
 * Return the name of a key that is sent as such; null for text, which arrives by the event `input`, and for keys of
 * the browser: those with Meta, copying a selection, and pasting.
 * @param {KeyboardEvent} event
 */
export function terminalKey(event) {
  const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
  if (event.isComposing || metaKey || event.getModifierState("AltGraph")) return null;
  const name = NAMES[key] ?? (/^F\d{1,2}$/.test(key) ? key.toLowerCase() : null);
  if (name === null && !ctrlKey && !altKey) return null;
  if (name === null && (key.length !== 1 || (ctrlKey && isOfBrowser(event)))) return null;
  const held = [ctrlKey && "ctrl", altKey && "alt", shiftKey && name !== null && "shift"].filter(Boolean);
  return [...held, name ?? (key === " " ? "space" : key.toLowerCase())].join("+");
}

function isOfBrowser({ key, shiftKey }) {
  const letter = key.toLowerCase();
  return letter === "v" || (letter === "c" && (shiftKey || !getSelection().isCollapsed)) || (shiftKey && letter === "i");
}
