/* A classic script that runs before the first paint, so that a stored theme does not flash in late. */
try {
  document.documentElement.dataset.theme = localStorage.getItem("trunkline.theme") ?? "";
} catch {
  // Storage is disabled: the tab has the choice, or it is the system's theme. See choices.js.
  document.documentElement.dataset.theme = new URLSearchParams(window.name).get("trunkline.theme") ?? "";
}
