/** Light or dark theme: the user's choice, else the system's. `theme_start.js` applies a stored choice. */

const KEY = "trunkline.theme";
const root = document.documentElement;

export function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(KEY, root.dataset.theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}
