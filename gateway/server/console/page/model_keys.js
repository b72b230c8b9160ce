/** Keys of a provider: a row with the state of each, and the form that replaces one. No key is ever shown. */
import { copyButton } from "/shared/copy_button.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { since } from "./amounts.js";
import { send } from "./api.js";
import { sourceOf } from "./setting_list.js";

const TONES = { usable: "good", refused: "bad", limited: "warn", missing: "bad" };

/**
 * @typedef {{alias: string, position: number, state: "usable" | "refused" | "limited" | "missing", since: number | null, until: number | null, models: string[], way: string, place: string, command: string, reason: string}} Key
 */

/** @param {Key} key @param {boolean} isAdmin @param {() => void} replace */
export function keyRow(key, isAdmin, replace) {
  const { alias, state, place, models, way } = key;
  const time = state === "refused" ? key.since : key.until;
  const said = time ? t(`models.key.${state}_at`, { time: since(time) }) : t(`models.key.${state}`);
  const label = t(way === "terminal" ? "models.key.how" : state === "missing" ? "models.key.add" : "models.key.replace");
  const button = isAdmin && h("button", { type: "button", class: "small", "aria-label": `${label}: ${alias}`, onclick: replace }, icon(way === "terminal" ? "terminal" : "key"), label);
  const only = models.length > 0 && h("small", { class: "muted" }, ` ${t("models.key.only", { models: models.join(", ") })}`);
  return h("li", {}, h("div", { class: "grow" }, h("b", {}, alias), " ", h("span", { class: `pill ${TONES[state]}` }, said), only, place && h("div", { class: "muted mono" }, sourceOf({ source: place }))), button);
}

/**
 * @param {{id: string, in_effect: "now" | "restart"}} provider @param {Key} key
 * @param {(done: {alias: string, tested: string, in_effect: string}) => void} done @param {() => void} cancel
 */
export function keyForm({ id, in_effect: effect }, key, done, cancel) {
  const field = h("input", { id: "new-key", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "new-key-how" });
  const check = h("input", { type: "checkbox", checked: true });
  const problem = h("p", { class: "problem", role: "alert" });
  const submit = h("button", { type: "submit", class: "primary" }, icon("key"), t("models.key.replace"));
  const how = [t(`models.way.${key.way}`, { place: key.place }), t(`models.effect.${effect}`), t("models.key.proof")].join(" ");
  const form = h(
    "form",
    { class: "proof key-form", "aria-label": t("models.key.replace_of", { key: key.alias, provider: id }) },
    h("label", { for: "new-key" }, t("models.key.new", { key: key.alias })),
    field,
    h("p", { id: "new-key-how", class: "muted" }, how),
    h("label", { class: "check" }, check, t("models.key.check")),
    h("p", { class: "command" }, h("code", {}, key.command), copyButton(t("command.copy"), () => key.command)),
    problem,
    h("div", { class: "acts" }, submit, h("button", { type: "button", onclick: cancel }, t("dialog.cancel"))),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    submit.disabled = true;
    try {
      const answer = await send("POST", `/api/models/providers/${encodeURIComponent(id)}/keys/${key.position}`, { key: field.value.trim(), check: check.checked });
      field.value = "";
      done(answer);
    } catch (error) {
      problem.textContent = error.message;
      submit.disabled = false;
      field.select();
    }
  });
  return form;
}
