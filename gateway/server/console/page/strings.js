/** Adds the strings of the console in the user's language. Modules read strings only once the console has started. */
import { addStrings, language } from "/shared/language.js";

const { [language]: strings } = language === "de" ? await import("./strings_de.js") : await import("./strings_en.js");
addStrings({ [language]: strings });
