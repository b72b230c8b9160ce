/** Names of keys as plugins register them: modifiers in a fixed order, then the key, in lower case. */

/** @param {KeyboardEvent} event @returns {string} such as "ctrl+shift+t", "f1", "alt+r" */
export function keyName(event) {
  const { key, code } = event;
  // With Alt some systems produce another letter, so the position of the key decides.
  const letter = event.altKey && /^Key[A-Z]$/.test(code) ? code.slice(3) : key;
  const held = [event.ctrlKey && "ctrl", event.altKey && "alt", event.metaKey && "meta"];
  const shifted = event.shiftKey && (letter.length > 1 || /[a-z]/i.test(letter)) && "shift";
  return [...held, shifted, letter === " " ? "space" : letter.toLowerCase()].filter(Boolean).join("+");
}
