/** What the screens say about a setting: its value, its source, and when a change takes effect. */
import { t } from "/shared/language.js";

/** Return the value of a setting as text. */
export function shownValue({ value, is_set, is_secret }) {
  if (is_secret) return is_set ? t("settings.is_set") : t("settings.is_unset");
  return typeof value === "string" ? value : value === null ? "–" : JSON.stringify(value);
}

/** Return the file with its line, the variable or the command line that a value is from. */
export function sourceOf({ source }) {
  return source === "default" ? t("settings.default") : source;
}

/** Return when a change takes effect. */
export function effectOf({ needs_restart }) {
  return t(needs_restart ? "settings.next_start" : "settings.now");
}

/** Return whether the gateway still works with another value. */
export function waits({ value, running }) {
  return JSON.stringify(value) !== JSON.stringify(running);
}
