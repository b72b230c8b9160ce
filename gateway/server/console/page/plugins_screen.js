/** Screen Plugins: the state of each, what it hooks, offers and may do, its calls, settings and log; MCP servers. */
import { announce } from "/shared/announcer.js";
import { openDialog } from "/shared/dialog.js";
import { fill, h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { language, t } from "/shared/language.js";
import { showPluginForm } from "/shared/plugin_settings.js";
import { emptyState, failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, lasted, money } from "./amounts.js";
import { read, send } from "./api.js";
import { showCommand } from "./command_dialog.js";
import { serversCard } from "./plugin_servers.js";
import { addressOf } from "./router.js";
import { markRow } from "./setting_list.js";
import { changeSetting } from "./settings_change.js";

const TONES = { running: "good", starting: "warn", restarting: "warn", quarantined: "bad", failed: "bad", stopped: "", disabled: "" };

class Plugins {
  #context;
  #asked = new AbortController();
  #plugins = null;
  #chosen = "";

  constructor(host, params, context) {
    this.#context = context;
    this.table = new Table({ label: t("extensions.list"), columns: columns(), keyOf: ({ name }) => name, address: ({ name }) => addressOf("plugins", [name]), rowHeight: 46 });
    this.card = h("section", { class: "card" });
    this.servers = h("section", { class: "card", hidden: true });
    this.panel = h("section", { class: "card", "aria-labelledby": "plugins-panel", hidden: true });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("extensions.title")), h("p", { class: "muted" }, t("extensions.text"))), h("div", { class: "two set-up" }, h("div", { class: "stack" }, this.card, this.servers), this.panel));
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
    });
    this.update(params);
    this.#load();
  }

  dispose() {
    this.#asked.abort();
  }

  /** @param {import("./router.js").Params} params `/console/plugins/NAME` */
  update({ path }) {
    const before = this.#chosen;
    this.#chosen = path[0] ?? "";
    if (this.#plugins) this.#show(before !== this.#chosen);
  }

  async #load() {
    const loaded = showLoading(this.card);
    try {
      const { plugins, servers } = await read("/api/plugins/states", {}, { signal: this.#asked.signal });
      this.#plugins = plugins;
      this.#show(false);
      if (servers.length > 0) serversCard(this.servers, servers, this.#context.isAdmin, this.#asked.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.card.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #show(focus) {
    const one = this.#chosen === "" ? this.#plugins[0] : this.#plugins.find(({ name }) => name === this.#chosen);
    this.table.setRows(this.#plugins);
    markRow(this.table, (row) => row === one);
    fill(this.card, this.#plugins.length ? this.table.element : emptyState({ icon: "plug", title: t("extensions.none"), text: t("extensions.none_text") }));
    this.panel.hidden = !one && this.#chosen === "";
    if (!one) return this.panel.replaceChildren(nothingFound({ query: this.#chosen, drop: () => this.#context.setQuery({}, []) }));
    this.panel.replaceChildren(h("header", {}, h("h2", { id: "plugins-panel", tabindex: "-1" }, one.name), pill(one)), h("div", { class: "body stack" }, this.#context.isAdmin && this.#actions(one), facts(one), ...calls(one), ...figures(one)));
    if (!focus) return;
    this.panel.scrollIntoView({ block: "nearest" });
    this.panel.querySelector("h2").focus({ preventScroll: true });
  }

  #actions(one) {
    const button = (label, name, act) => h("button", { type: "button", class: "small", onclick: act }, icon(name), label);
    const isOn = one.entry !== "";
    const buttons = [
      one.configurable && button(t("extensions.settings"), "gear", () => openSettings(one.name)),
      (isOn || one.state === "disabled") && button(t(isOn ? "extensions.disable" : "extensions.enable"), isOn ? "stop" : "play", () => this.#enable(one, !isOn)),
      isOn && button(t("extensions.apply"), "again", () => this.#apply(one.name)),
      one.has_log && button(t("extensions.log"), "list", () => openLog(one.name)),
      one.kind === "confined" && button(t("extensions.trust"), "terminal", () => showCommand({ label: t("extensions.trust"), command: `trunkline config set plugins.${one.name}.trust full` })),
      one.kind === "all rights" && isOn && button(t("extensions.confine"), "hand", () => this.#confine(one.name)),
    ];
    const shown = buttons.filter(Boolean);
    return shown.length > 0 && h("div", { class: "acts" }, ...shown);
  }

  /**
   * Enable or disable a plugin, after showing what that changes. One that is a path stays in `plugins.enabled`, since
   * nothing else says where it is, and is named in `plugins.disabled`.
   */
  async #enable({ name, entry }, on) {
    try {
      const { settings, can_change: can, file } = await read("/api/settings");
      if (!can) return this.#context.notify(t("settings.fixed", { file }));
      const [enabled, disabled] = ["enabled", "disabled"].map((list) => settings.find(({ path }) => path.join() === `plugins,${list}`));
      const names = (list) => (Array.isArray(list.value) ? list.value : []);
      const isNamed = on ? names(disabled).includes(name) : entry.includes("/");
      const list = isNamed ? disabled : enabled;
      const value = on === isNamed ? names(list).filter((each) => each !== (isNamed ? name : entry)) : [...names(list), name];
      if (await changeSetting({ ...list, value })) await this.#load();
    } catch (error) {
      this.#context.notify(error.message);
    }
  }

  async #confine(name) {
    const setting = { path: ["plugins", name, "trust"], key: `plugins.${name}.trust`, value: "sandbox", kind: "string", choices: ["sandbox"], description: t("extensions.confine_text"), lang: language, source: "plugins", is_secret: false };
    if (await changeSetting(setting)) await this.#load();
  }

  async #apply(name) {
    try {
      const { change } = await send("POST", "/api/plugins/apply", { name });
      announce([h("p", {}, t("extensions.applied", { name, outcome: t(`extensions.outcome.${change.outcome}`) }))]);
      await this.#load();
    } catch (error) {
      this.#context.notify(error.message);
    }
  }
}

function columns() {
  return [
    { label: t("extensions.plugin"), show: ({ name, version }) => h("span", {}, name, version !== "" && version !== "0" && h("small", { class: "muted" }, ` ${version}`)), sort: ({ name }) => name },
    { label: t("extensions.state"), show: pill, sort: ({ state }) => state },
    { label: t("extensions.kind"), show: ({ kind }) => t(`extensions.kind.${kind.replace(" ", "_")}`), sort: ({ kind }) => kind },
    { label: t("extensions.tools"), show: ({ tools }) => counted(tools.length), sort: ({ tools }) => tools.length, right: true, class: "more" },
    { label: t("extensions.hooks"), show: ({ hooks }) => counted(hooks.length), sort: ({ hooks }) => hooks.length, right: true, class: "more" },
    { label: t("extensions.error"), show: ({ reason }) => h("span", { class: "muted clip reason", title: reason }, reason || "–"), class: "more" },
  ];
}

function pill({ state }) {
  return h("span", { class: `pill ${TONES[state]}` }, t(`extensions.state.${state}`));
}

function facts({ description, kind, entry, reason, hooks, tools, commands, permissions, deaths, usd }) {
  const codes = (names) => (names.length ? h("span", { class: "codes" }, ...names.map((name) => h("code", {}, name))) : "–");
  const rows = [
    description && [t("extensions.about"), description],
    [t("extensions.kind"), t(`extensions.kind.${kind.replace(" ", "_")}`)],
    entry && [t("extensions.entry"), h("code", {}, entry)],
    reason && [t("extensions.error"), h("span", { class: "bad", lang: "en" }, reason)],
    [t("extensions.hooks"), codes(hooks)],
    [t("extensions.tools"), codes(tools)],
    commands.length > 0 && [t("extensions.commands"), codes(commands.map((name) => `/${name}`))],
    [t("extensions.permissions"), kind === "confined" || permissions.length ? codes(permissions) : t("extensions.all_rights")],
    kind === "confined" && [t("extensions.deaths"), counted(deaths)],
    usd > 0 && [t("extensions.cost"), money(usd)],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function calls({ calls: found }) {
  if (found.length === 0) return [];
  const row = ({ name, calls: count, p50_ms: half, p99_ms: most }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), h("td", { class: "right" }, counted(count)), h("td", { class: "right" }, lasted(half)), h("td", { class: "right" }, lasted(most)));
  return [plain(t("extensions.calls"), [t("extensions.call"), t("money.calls"), t("extensions.half"), t("extensions.most")], found.map(row))];
}

function figures({ figures: found }) {
  if (found.length === 0) return [];
  const row = ({ name, value, labels }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, [name, ...Object.entries(labels).map(([key, one]) => `${key}=${one}`)].join(" "))), h("td", { class: "right" }, counted(value)));
  return [plain(t("extensions.figures"), [t("extensions.figure"), t("settings.value")], found.map(row))];
}

function plain(label, heads, rows) {
  return h("div", {}, h("h3", {}, label), h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", {}, h("caption", { class: "offscreen" }, label), h("thead", {}, h("tr", {}, ...heads.map((name, at) => h("th", { scope: "col", class: at > 0 && "right" }, name)))), h("tbody", {}, ...rows))));
}

async function openSettings(name) {
  const form = h("form", { class: "plugin-form" });
  openDialog(name, form);
  const path = `/api/plugins/${encodeURIComponent(name)}/config`;
  const change = async (_name, values) => {
    try {
      return { config: await send("PATCH", path, values) };
    } catch (error) {
      return { error: error.message };
    }
  };
  try {
    const config = await read(path);
    showPluginForm(form, config, change, config.problem);
  } catch (error) {
    form.append(h("p", { role: "alert" }, error.message));
  }
}

async function openLog(name) {
  const text = h("pre", { tabindex: "0", "aria-label": t("extensions.log"), lang: "en" });
  openDialog(`${t("extensions.log")}: ${name}`, h("div", { class: "set-up" }, text));
  try {
    text.textContent = (await read("/api/plugins/log", { name })).text || t("extensions.log_empty");
  } catch (error) {
    text.textContent = error.message;
  }
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  return new Plugins(host, params, context);
}
