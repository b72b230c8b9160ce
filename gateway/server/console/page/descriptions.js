/** Descriptions of settings in the language of the page. Those of the gateway are English. */
import { language } from "/shared/language.js";

const german = language === "de" ? await load() : {};

/** Return the description of a setting and its language. @param {{description: string, lang?: string}} setting @returns {{text: string, lang: string}} */
export function describe({ description, lang = "en" }) {
  return description in german ? { text: german[description], lang: "de" } : { text: description, lang };
}

/** Read the German descriptions; without them the English ones are shown. @returns {Promise<Record<string, string>>} */
async function load() {
  try {
    return await (await fetch("/console/page/descriptions_de.json")).json();
  } catch {
    return {};
  }
}
