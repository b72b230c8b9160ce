/** Settings in a form: value, source, when a change takes effect, and a button that changes it. */
import { announce } from "/shared/announcer.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { describe } from "./descriptions.js";

/**
 * @param {any[]} settings as the API has them
 * @param {{changed: () => void, fixed?: boolean}} how `changed` is called after a change; `fixed` shows no buttons
 */
export function settingList(settings, { changed, fixed = false }) {
  const change = async (setting) => {
    // Loaded only now: a viewer changes nothing.
    const { changeSetting } = await import("./settings_change.js");
    if (!(await changeSetting(setting))) return;
    announce([h("p", {}, t("settings.saved", { key: setting.key }))]);
    changed();
  };
  const item = (setting) => {
    const { path, key, inherited } = setting;
    const { text, lang } = describe(setting);
    const name = path.at(-1);
    return h(
      "li",
      {},
      h(
        "div",
        { class: "grow" },
        h("span", { class: "setting-key", title: key }, name),
        h("div", { class: "setting-value" }, setting.shown ?? shownValue(setting), waits(setting) && h("span", { class: "pill warn" }, t("settings.waits"))),
        h("p", { class: "muted" }, [setting.source && t(inherited ? "settings.inherited" : "settings.from", { source: sourceOf(setting) }), t("settings.effect", { when: effectOf(setting) })].filter(Boolean).join(" · ")),
        h("p", { class: "muted", lang }, text),
      ),
      !fixed && h("button", { type: "button", class: "small", "aria-label": t("settings.change_key", { key: name }), onclick: () => change(setting) }, t("settings.change")),
    );
  };
  return h("ul", { class: "rows setting-list" }, ...settings.map(item));
}

/**
 * Return the button that makes a table of the settings. Its dialog is loaded when it is pressed.
 * @param {string} title @param {() => any[]} fields @param {(values: Record<string, string>) => string[]} pathOf
 */
export function newButton(title, fields, pathOf) {
  const open = async () => {
    const { createTable } = await import("./settings_change.js");
    let key = "";
    const made = await createTable(title, fields(), (values) => {
      const path = pathOf(values);
      key = path.join(".");
      return path;
    });
    if (made) announce([h("p", {}, `${t("settings.saved", { key })} ${t("settings.restart")}`)]);
  };
  return h("button", { type: "button", class: "small", onclick: open }, icon("plus"), title);
}

/** Return a heading inside a form. @param {string} text @param {...any} more */
export function formPart(text, ...more) {
  return h("div", { class: "form-part" }, h("h3", {}, text), ...more);
}

/** Return facts as a list of definitions; a fact without a value is left out. @param {[string, any][]} facts */
export function factList(facts) {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Mark the row of what is shown beside the table; the keyboard stays where it is. @param {import("/shared/table.js").Table<any>} table @param {(row: any) => boolean} isShown */
export function markRow(table, isShown) {
  const { rows, current } = table;
  const at = rows[current] && isShown(rows[current]) ? current : rows.findIndex(isShown);
  table.shown = at < 0 ? undefined : table.keyOf(rows[at]);
  if (at >= 0 && !table.element.contains(document.activeElement)) table.current = at;
  table.setRows(table.rows);
}

/** Bring a form into view where it is below its table or above it. @param {HTMLElement} form */
export function showForm(form) {
  if (matchMedia("(max-width: 1100px)").matches) form.scrollIntoView();
}

/** Return the value of a setting as text. */
export function shownValue({ value, is_set, is_secret }) {
  if (is_secret) return is_set ? t("settings.is_set") : t("settings.is_unset");
  return typeof value === "string" ? value : value === null ? "–" : JSON.stringify(value);
}

/** Return the file with its line, the variable or the command line that a value is from. */
export function sourceOf({ source }) {
  return { default: t("settings.default"), "command line": t("settings.command_line") }[source] ?? source;
}

/** Return when a change takes effect. */
export function effectOf({ needs_restart }) {
  return t(needs_restart ? "settings.next_start" : "settings.now");
}

/** Return whether the gateway still works with another value. */
export function waits({ value, running }) {
  return JSON.stringify(value) !== JSON.stringify(running);
}
