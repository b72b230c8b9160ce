/** Search field of the top bar. It opens Why for anything that looks like an id or a link, else the conversations. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { addressOf, goTo } from "./router.js";

/** Ids have no spaces and at least one digit: numbers, UUIDs, hex, "1731234567.000100", "chat:message". */
const ID = /^(?=\S*\d)[\w.:@=+/-]{4,300}$/;

/** @param {(name: string) => boolean} has whether a screen exists */
export function searchField(has) {
  const input = h("input", { type: "search", id: "search", "aria-label": t("frame.search"), placeholder: t("frame.search"), autocomplete: "off", spellcheck: "false", enterkeyhint: "search" });
  const form = h("form", { class: "find", role: "search" }, icon("search"), input, h("kbd", { "aria-hidden": "true" }, "Ctrl K"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (text === "") return;
    goTo(isId(text) || !has("conversations") ? addressOf("why", [text]) : addressOf("conversations", [], { q: text }));
    input.value = "";
  });
  return { form, focus: () => (input.focus(), input.select()) };
}

/** Return whether a text is an id or a link of a message. @param {string} text */
export function isId(text) {
  return /^https?:\/\/\S+$/i.test(text) || (ID.test(text) && !/^[a-z]+:[^\d]/i.test(text));
}
