/**
 * Choices of the user that the browser keeps, such as the theme. Where it stores nothing they last as long as the tab,
 * whose name outlives a reload.
 */

/** Return a choice, empty without one. @param {string} key */
export function choice(key) {
  const named = ofTab().get(key);
  if (named !== null) return named;
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

/** Keep a choice; an empty one is forgotten. @param {string} key @param {string} value */
export function choose(key, value) {
  const named = ofTab();
  try {
    if (value) localStorage.setItem(key, value);
    else localStorage.removeItem(key);
    if (!named.has(key)) return;
    named.delete(key);
  } catch {
    named.set(key, value);
  }
  window.name = String(named);
}

function ofTab() {
  return new URLSearchParams(window.name);
}
