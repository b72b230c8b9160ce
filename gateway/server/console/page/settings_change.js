/** Dialog that changes one setting: the new value, then what it writes, then saving it. */
import { copyButton } from "/shared/copy_button.js";
import { openDialog } from "/shared/dialog.js";
import { h, notTwice } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { send } from "./api.js";
import { describe } from "./descriptions.js";
import { sourceOf } from "./setting_list.js";
import { diffLines } from "./words.js";

/**
 * @param {{path: string[], key: string, value: any, kind: string, choices: any[], description: string, source: string, is_secret: boolean}} setting
 * @returns {Promise<boolean>} whether it was changed
 */
export function changeSetting(setting) {
  const { field, value } = fieldOf(setting);
  const { path, kind } = setting;
  const { text, lang } = describe(setting);
  const parts = [
    h("p", { lang }, text),
    h("p", { class: "muted" }, t("settings.from", { source: sourceOf(setting) })),
    h("label", { for: "setting-value" }, setting.is_secret ? t("settings.new_secret") : t("settings.new_value")),
    field,
    kind === "array" || kind === "object" ? h("p", { class: "muted" }, t("settings.json")) : null,
  ];
  return openChange(setting.key, parts, () => ({ path, value: value() }), setting.source !== "default" && !setting.inherited && { path, value: null });
}

/**
 * Make a table of the settings, such as an agent. What its fields leave empty is not written.
 * @param {string} title
 * @param {{name: string, label: string, hint?: string, choices?: [string, string][], pattern?: string, required?: boolean, long?: boolean, list?: boolean}[]} fields
 * @param {(values: Record<string, string>) => string[]} pathOf takes the fields of the path out of the values
 * @returns {Promise<boolean>} whether it was made
 */
export function createTable(title, fields, pathOf) {
  const inputs = fields.map(({ name, hint, choices, pattern, required, long }) => {
    const facts = { id: `new-${name}`, required, "aria-describedby": hint && `new-${name}-hint` };
    if (choices) return h("select", facts, ...choices.map(([value, label]) => h("option", { value }, label)));
    return long ? h("textarea", { ...facts, rows: 6 }) : h("input", { ...facts, type: "text", autocomplete: "off", spellcheck: "false", pattern });
  });
  const part = ({ name, label, hint }, at) => [h("label", { for: `new-${name}` }, label), inputs[at], hint && h("p", { class: "muted", id: `new-${name}-hint` }, hint)];
  const read = () => {
    const given = Object.fromEntries(fields.map(({ name }, at) => [name, inputs[at].value.trim()]));
    const path = pathOf(given);
    const lists = new Set(fields.filter(({ list }) => list).map(({ name }) => name));
    const value = Object.fromEntries(Object.entries(given).filter(([, text]) => text).map(([name, text]) => [name, lists.has(name) ? text.split(/[\s,]+/) : text]));
    return { path, value, is_new: true };
  };
  return openChange(title, fields.flatMap(part), read);
}

/** Ask for a change, show what it writes, and save it. @returns {Promise<boolean>} whether it was saved */
function openChange(title, parts, read, unset) {
  return new Promise((resolve) => {
    let saved = false;
    /** Counts changes of the form: the plan of an older text is not shown. */
    let version = 0;
    const problem = h("p", { class: "problem", role: "alert" });
    const plan = h("div", { class: "setting-plan", "aria-live": "polite" });
    const show = h("button", { type: "submit", class: "primary" }, t("settings.show"));
    const reset = unset ? h("button", { type: "button", onclick: () => preview(unset) }, t("settings.reset")) : null;
    const form = h("form", { class: "proof" }, ...parts, problem, h("div", { class: "acts" }, show, reset));
    const dialog = openDialog(title, form, plan);
    const refused = (error) => (problem.textContent = error.message);

    async function preview(wanted) {
      problem.textContent = "";
      plan.replaceChildren();
      const asked = ++version;
      try {
        const planned = await send("POST", "/api/settings/plan", wanted);
        if (asked !== version) return;
        plan.replaceChildren(...planView(planned, () => save(wanted, planned.digest)));
        plan.querySelector("button.primary")?.focus();
      } catch (error) {
        refused(error);
      }
    }

    async function save(wanted, digest) {
      try {
        const { problem: kept } = await send("POST", "/api/settings", { ...wanted, digest });
        saved = true;
        if (!kept) return dialog.close();
        plan.replaceChildren(h("p", { class: "warning" }, icon("warning"), h("span", {}, t("settings.not_taken", { reason: kept }))));
      } catch (error) {
        refused(error);
        if (error.status !== 409) return;
        // The difference is that of an older file: it has to be looked at again.
        plan.replaceChildren();
        show.focus();
      }
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      try {
        preview(read());
      } catch {
        problem.textContent = t("settings.no_json");
      }
    });
    form.addEventListener("input", () => (version++, plan.replaceChildren()));
    dialog.addEventListener("close", () => resolve(saved));
    form.querySelector("input, select, textarea")?.focus();
  });
}

function planView({ difference, command, needs_proof, needs_restart, only_in_terminal }, save) {
  const equal = h("div", { class: "command" }, h("code", {}, command), copyButton(t("settings.copy"), () => command));
  const changed = h("pre", { tabindex: "0", "aria-label": t("settings.difference") }, ...diffLines(difference));
  if (only_in_terminal) return [h("p", { class: "warning" }, icon("warning"), h("span", {}, t("settings.terminal", { reason: only_in_terminal }))), equal];
  return [
    h("h3", {}, t("settings.difference")),
    changed,
    h("p", { class: "muted" }, t("settings.equal")),
    equal,
    h("p", {}, [t(needs_restart ? "settings.restart" : "settings.at_once"), needs_proof ? t("settings.proof") : ""].filter(Boolean).join(" ")),
    h("button", { type: "button", class: "primary", onclick: notTwice(save) }, icon("check"), t("settings.save")),
  ];
}

/** Return the field for a value, and the function that reads it. */
function fieldOf({ path, value, kind, choices, is_secret }) {
  const id = "setting-value";
  const options = kind === "boolean" ? [true, false] : choices;
  if (options.length > 0 && !is_secret) {
    const field = h("select", { id }, ...options.map((each) => h("option", { value: JSON.stringify(each), selected: each === value }, String(each))));
    return { field, value: () => JSON.parse(field.value) };
  }
  if (is_secret) {
    const field = h("input", { id, type: "password", autocomplete: "off", required: true, spellcheck: "false" });
    return { field, value: () => field.value.trim() };
  }
  if (kind === "array" || kind === "object") {
    const field = h("textarea", { id, rows: 5, spellcheck: "false", class: "mono" });
    field.value = JSON.stringify(value ?? (kind === "array" ? [] : {}), null, 1);
    return { field, value: () => JSON.parse(field.value) };
  }
  if (path.at(-1) === "system_prompt" || String(value).includes("\n")) {
    // A field of one line would drop the others.
    const field = h("textarea", { id, rows: 10, required: true });
    field.value = value ?? "";
    return { field, value: () => field.value };
  }
  const field = h("input", { id, type: "text", autocomplete: "off", required: true, spellcheck: "false" });
  field.value = value ?? "";
  const isNumber = kind === "integer" || kind === "number";
  return { field, value: () => (isNumber && /^-?\d+(\.\d+)?$/.test(field.value.trim()) ? Number(field.value) : field.value) };
}
