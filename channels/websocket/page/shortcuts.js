/** The name of a key as plugins register it: modifiers in a fixed order, then the key, all in lower case. */

/** @param {KeyboardEvent} event @returns {string} such as "ctrl+shift+t", "f1", "alt+r" */
export function keyName(event) {
  const { key, code } = event;
  // With Alt some systems type another letter; the key's place tells which one was meant.
  const letter = event.altKey && /^Key[A-Z]$/.test(code) ? code.slice(3) : key;
  const held = [event.ctrlKey && "ctrl", event.altKey && "alt", event.metaKey && "meta"];
  const shifted = event.shiftKey && (letter.length > 1 || /[a-z]/i.test(letter)) && "shift";
  return [...held, shifted, letter === " " ? "space" : letter.toLowerCase()].filter(Boolean).join("+");
}
