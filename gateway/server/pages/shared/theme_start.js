/* A classic script that runs before the first paint, so that a stored theme does not flash in late. */
try {
  document.documentElement.dataset.theme = localStorage.getItem("trunkline.theme") ?? "";
} catch {
  // Storage is disabled: use the system's theme.
}
