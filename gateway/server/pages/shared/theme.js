/** Light or dark theme: the user's choice, else the system's. `theme_start.js` applies a stored choice. */

import { choose } from "./choices.js";

const KEY = "trunkline.theme";
const root = document.documentElement;

export function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** @returns {"light" | "dark" | ""} the user's choice, empty for the system's theme */
export function chosenTheme() {
  return root.dataset.theme ?? "";
}

/** Use a theme and keep the choice. @param {"light" | "dark" | ""} theme */
export function chooseTheme(theme) {
  root.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("theme"));
  choose(KEY, theme);
}

export function toggleTheme() {
  chooseTheme(isDark() ? "light" : "dark");
}
