/** A test call: one short request to a model, what it took, or why it failed and what helps. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { has, t } from "/shared/language.js";
import { counted, lasted } from "./amounts.js";
import { send } from "./api.js";

/**
 * @param {{id: string, name: string}} one the provider @param {string} chosen full name of a model
 * @returns {{form: HTMLFormElement, offer: (models: string[]) => void}} `offer` takes full names of models of any provider
 */
export function testForm({ id: provider, name }, chosen) {
  const field = h("select", { id: "test-model", onchange: () => (chosen = field.value) });
  const offer = (models) => {
    const own = new Set(models.filter((each) => each.startsWith(`${provider}/`)));
    const options = [[provider, t("models.test_default")], ...[...own].map((each) => [each, each.slice(provider.length + 1)])];
    field.replaceChildren(...options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
  };
  const result = h("div", { class: "test-result", role: "status" });
  const button = h("button", { type: "submit" }, icon("send"), t("models.test"));
  const form = h("form", { class: "proof", "aria-labelledby": "test-title" }, h("h3", { id: "test-title" }, t("models.test_title")), h("p", { class: "muted" }, t("models.test_text")), h("label", { for: "test-model" }, t("models.model")), field, h("div", { class: "acts" }, button), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    result.replaceChildren(h("p", { class: "muted" }, t("models.test_runs")));
    try {
      result.replaceChildren(...resultOf(await send("POST", "/api/models/test", { name: field.value }), name));
    } catch (error) {
      result.replaceChildren(h("p", { class: "bad" }, error.message));
    }
    button.disabled = false;
  });
  return { form, offer };
}

/** Return the result in words. For an error without words here, those of the gateway are English. */
function resultOf({ ok, model, first_token_ms: first, whole_ms: whole, input_tokens: given, output_tokens: made, error, provider: id, name, summary, way_out: remedy, detail }, provider) {
  if (ok) return [h("p", {}, h("span", { class: "pill good" }, t("models.answers")), ` ${t("models.took", { model, first: lasted(first ?? whole), whole: lasted(whole), tokens: `${counted(given ?? 0)} + ${counted(made ?? 0)}` })}`)];
  const known = `models.failed.${error}`;
  return [
    has(known) ? h("p", { class: "bad" }, t(known, { provider: name || provider, id, model: model || "–" })) : h("p", { lang: "en" }, h("strong", { class: "bad" }, `${summary}: `), `${remedy}.`),
    h("details", {}, h("summary", {}, t("models.original")), h("pre", { tabindex: "0", "aria-label": t("models.original"), lang: "en" }, detail)),
  ];
}
