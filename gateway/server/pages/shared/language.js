/**
 * Language of the interface: the user's choice, else the browser's, else English. A change needs a reload.
 * A page adds its own strings with `addStrings` in the first module that it imports.
 */
import { choice, choose } from "./choices.js";
import { de } from "./strings_de.js";
import { en } from "./strings_en.js";

const KEY = "trunkline.language";
const STRINGS = { en: { ...en }, de: { ...de } };

/** Languages by code, as they name themselves. */
export const LANGUAGES = { en: "English", de: "Deutsch" };

/** @type {"en" | "de"} */
export const language = [choice(KEY), ...navigator.languages.map((tag) => tag.slice(0, 2)), "en"].find((code) => code in STRINGS);
/** Tag for dates and numbers, such as "en-GB": the browser's of that language. */
export const locale = navigator.languages.find((tag) => tag.startsWith(language)) ?? language;
const strings = STRINGS[language];
document.documentElement.lang = language;

/** Add the strings of a page, at least of its language. @param {{en?: Record<string, string>, de?: Record<string, string>}} added */
export function addStrings(added) {
  Object.assign(STRINGS.en, added.en);
  Object.assign(STRINGS.de, added.de);
}

/**
 * Return a string of the interface. With a `count` of 1 it is that of `KEY_one`, if there is one.
 * @param {string} key @param {Record<string, string | number>} [values] of its {placeholders}
 */
export function t(key, values = {}) {
  const text = (String(values.count) === "1" && strings[`${key}_one`]) || strings[key];
  return text.replace(/\{(\w+)\}/g, (_all, name) => String(values[name]));
}

/** Return whether the interface has a string. @param {string} key */
export function has(key) {
  return key in strings;
}

/** Keep a language and load the page again; stored drafts survive that. @param {string} code */
export function chooseLanguage(code) {
  choose(KEY, code);
  location.reload();
}
