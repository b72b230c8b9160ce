/** Light or dark: what the system says, unless the user chose. `theme_start.js` applies an earlier choice. */

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
    // Without storage the choice lasts until the page is left.
  }
}
