/** Search field of the top bar. It opens Why for a message or a link, else what has the words. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { addressOf, goTo } from "./router.js";

/** @param {(name: string) => boolean} has whether a screen exists: a viewer can only look for messages by their id */
export function searchField(has) {
  const label = t(has("conversations") ? "frame.search" : "frame.search_id");
  const input = h("input", { type: "search", id: "search", "aria-label": label, placeholder: label, maxlength: 300, autocomplete: "off", spellcheck: "false", enterkeyhint: "search" });
  const form = h("form", { class: "find", role: "search" }, icon("search"), input, h("kbd", { "aria-hidden": "true" }, "Ctrl K"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (text === "") return;
    input.value = "";
    // Loaded only now: most visits search nothing.
    goTo(has("conversations") ? await (await import("./search_targets.js")).targetOf(text) : addressOf("why", [text]));
  });
  return { form, focus: () => (input.focus(), input.select()) };
}
