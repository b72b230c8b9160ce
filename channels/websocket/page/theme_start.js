/* A plain script, run before anything is drawn: a theme chosen earlier never flashes in late. */
try {
  document.documentElement.dataset.theme = localStorage.getItem("trunkline.theme") ?? "";
} catch {
  // Storage is off: the system's theme it is.
}
