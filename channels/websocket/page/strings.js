/** Adds the strings of this page. It is imported first, because other modules read strings when they load. */
import { addStrings } from "/shared/language.js";
import { de } from "./strings_de.js";
import { en } from "./strings_en.js";

addStrings({ en, de });
