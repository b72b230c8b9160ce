/** Settings: every value with its source; a change shows what it writes before it is saved. */
import { announce } from "/shared/announcer.js";
import { fullTime, shortTime } from "/shared/dates.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { read } from "./api.js";
import { describe } from "./descriptions.js";
import { settingText } from "./search_targets.js";
import { changeSetting } from "./settings_change.js";
import { effectOf, shownValue, sourceOf, waits } from "./setting_list.js";
import { matching } from "./words.js";

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  return new Settings(host, params, context);
}

class Settings {
  constructor(host, params, context) {
    this.context = context;
    this.aborted = new AbortController();
    this.found = { file: "", can_change: false, settings: [] };
    this.file = h("span", { class: "muted mono" });
    this.search = h("input", { type: "search", "aria-label": t("settings.search"), placeholder: t("settings.search"), autocomplete: "off", spellcheck: "false" });
    this.section = h("select", { "aria-label": t("settings.section") });
    this.card = h("section", { class: "card all-settings" });
    this.audit = h("section", { class: "card", hidden: true });
    this.table = new Table({ label: t("settings.title"), keyOf: (row) => row.key, open: (row) => this.#change(row), columns: columns(), rowHeight: 46 });
    const filters = h("div", { class: "acts" }, this.section, this.search);
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("settings.title")), this.file, filters), this.card, this.audit);
    this.search.addEventListener("input", () => this.#filter());
    this.section.addEventListener("change", () => this.#filter());
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
      "/": { label: t("settings.search"), act: () => this.search.focus() },
    });
    this.update(params);
    this.#load();
    this.#loadAudit();
  }

  dispose() {
    this.aborted.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ query }) {
    this.wanted = query.get("section") ?? "";
    if (document.activeElement !== this.search) this.search.value = query.get("q") ?? "";
    this.#show();
  }

  #filter() {
    this.context.setQuery({ q: this.search.value.trim(), section: this.section.value });
  }

  async #load() {
    const loaded = showLoading(this.card);
    try {
      this.found = await read("/api/settings", {}, { signal: this.aborted.signal });
      this.file.textContent = this.found.file;
      this.#show();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.card.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #show() {
    const { settings } = this.found;
    if (settings.length === 0) return;
    const sections = [...new Set(settings.map(sectionOf))];
    const options = [["", t("settings.all")], ...sections.map((name) => [name, name])];
    this.section.replaceChildren(...options.map(([value, label]) => h("option", { value, selected: value === this.wanted }, label)));
    const rows = matching(settings, this.search.value, settingText).filter((row) => this.wanted === "" || sectionOf(row) === this.wanted);
    this.table.setRows(rows);
    const drop = () => ((this.search.value = ""), this.context.setQuery({}));
    // The table stays where it is, with the focus.
    if (rows.length === 0) this.card.replaceChildren(nothingFound({ query: this.search.value, filters: this.wanted, drop }));
    else if (!this.table.element.isConnected) this.card.replaceChildren(this.table.element);
  }

  async #change(row) {
    if (!this.found.can_change) return this.context.notify(t("settings.fixed", { file: this.found.file }));
    if (await changeSetting(row)) announce([h("p", {}, t("settings.saved", { key: row.key }))]);
    // Also after a refusal: another admin may have changed the file.
    await this.#load();
    this.#loadAudit();
  }

  /** Show the latest actions, as far as the gateway has the log of them. */
  async #loadAudit() {
    try {
      const { rows = [] } = await read("/api/audit", { limit: 20 }, { signal: this.aborted.signal });
      const line = ({ at, actor, action, subject }) =>
        h("li", {}, h("time", { datetime: new Date(at).toISOString(), title: fullTime(at) }, shortTime(at)), h("span", { class: "grow" }, h("strong", {}, actor), ` ${action} `, h("span", { class: "mono" }, subject)));
      this.audit.hidden = rows.length === 0;
      this.audit.replaceChildren(h("header", {}, h("h2", {}, t("settings.audit"))), h("ul", { class: "rows" }, ...rows.map(line)));
    } catch {
      this.audit.hidden = true;
    }
  }
}

function sectionOf({ path }) {
  return path.length > 1 ? path[0] : t("settings.general");
}

function columns() {
  const name = (row) => {
    const { text, lang } = describe(row);
    return h("span", { class: "two-lines" }, h("span", { class: "setting-key" }, row.key), h("span", { class: "muted clip", lang, title: text }, text));
  };
  const value = (row) => h("span", {}, h("span", { class: "mono clip", title: row.is_secret ? undefined : shownValue(row) }, shownValue(row)), waits(row) && h("span", { class: "pill warn" }, t("settings.waits")));
  return [
    { label: t("settings.setting"), show: name, sort: (row) => row.key },
    { label: t("settings.value"), show: value },
    { label: t("settings.source"), show: (row) => h("span", { class: "muted" }, sourceOf(row)), sort: (row) => row.source },
    { label: t("settings.takes_effect"), show: (row) => h("span", { class: "muted" }, effectOf(row)), sort: effectOf },
  ];
}
