/** Screen Agents: who answers, with which model, tools and prompt, where this is defined, and what it costs. */
import { fill, h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, money } from "./amounts.js";
import { read } from "./api.js";
import { addressOf } from "./router.js";
import { factList, formPart, markRow, newButton, settingList, showForm } from "./setting_list.js";

class Agents {
  #context;
  #asked = new AbortController();
  #found = { file: "", agents: [], tools: [] };
  #chosen = "";

  constructor(host, context) {
    this.#context = context;
    this.count = h("span", { class: "muted", role: "status" });
    this.acts = h("div", { class: "acts" });
    this.list = h("section", { class: "card" });
    this.form = h("section", { class: "card form", "aria-label": t("agents.one") });
    this.table = new Table({ label: t("agents.title"), keyOf: (row) => row.name, address: (row) => addressOf("agents", [row.name]), columns: columns() });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("agents.title")), this.count, this.acts), h("div", { class: "set-up even" }, this.list, this.form));
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
    });
    this.#load();
  }

  dispose() {
    this.#asked.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ path }) {
    this.#chosen = path[0] ?? "";
    this.#draw();
    if (this.#chosen) showForm(this.form);
  }

  async #load() {
    const loaded = showLoading(this.list);
    try {
      this.#found = await read("/api/console/agents", {}, { signal: this.#asked.signal });
      const { agents } = this.#found;
      this.count.textContent = t("agents.count", { count: counted(agents.length) });
      // Once: a button that is replaced loses the focus that its dialog gives back.
      if (this.#context.isAdmin && this.#found.can_add && this.acts.children.length === 0) this.acts.append(newButton(t("agents.new"), () => fieldsOf(this.#found.agents), takeName));
      this.table.setRows(agents);
      fill(this.list, this.table.element);
      this.#draw();
    } catch (error) {
      if (error.name !== "AbortError") this.list.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #draw() {
    const { agents, file } = this.#found;
    if (agents.length === 0) return;
    const one = agents.find(({ name }) => name === (this.#chosen || "main"));
    markRow(this.table, (row) => row === one);
    this.form.replaceChildren(...(one ? this.#view(one, file) : [emptyState({ icon: "robot", title: t("agents.none", { name: this.#chosen }), text: t("agents.none_text") })]));
  }

  #view(one, file) {
    const { name, origin, place, can_change: canChange, settings, prompt } = one;
    const link = (screen, query, text) => (this.#context.has(screen) ? h("a", { href: addressOf(screen, [], query) }, text) : text);
    const fixed = !canChange || !this.#context.isAdmin;
    const changed = () => this.#load();
    return [
      h("header", {}, h("h2", {}, name), h("span", { class: "pill" }, t(`agents.origin.${origin}`))),
      h(
        "div",
        { class: "body stack" },
        one.description && h("p", {}, one.description),
        factList([
          [t("agents.model"), h("code", {}, one.model || "–")],
          [t("agents.fallback"), one.fallback.length > 0 && h("code", {}, one.fallback.join(" → "))],
          [t("agents.tools"), toolsOf(one)],
          [t("agents.conversations"), link("conversations", { agent: name }, counted(one.conversations))],
          [t("agents.cost"), link("money", { agent: name, by: "model", days: "30" }, costOf(one))],
          [t("agents.place"), place && h("code", {}, place)],
        ].map(([label, value]) => [label, value === false ? "" : value])),
        origin !== "settings" && file && h("p", { class: "muted" }, t(`agents.edit.${origin}`, { file, place, name })),
        origin === "settings" && !canChange && h("p", { class: "muted" }, t("settings.fixed", { file })),
      ),
      formPart(t("agents.permissions"), rulesOf(one, this.#found.tools)),
      settings.length > 0 && settingList(settings, { changed, fixed }),
      prompt && formPart(t("agents.prompt"), prompt.value ? h("pre", { tabindex: "0", "aria-label": t("agents.prompt") }, prompt.value) : h("p", { class: "muted" }, t("agents.no_prompt")), settingList([{ ...prompt, shown: "" }], { changed, fixed })),
    ].filter(Boolean);
  }
}

/** Return the path of a new agent, and leave its settings. */
function takeName(values) {
  const path = ["agents", values.name];
  delete values.name;
  return path;
}

/** Return the fields of a new agent. A name that is taken does not fit its pattern. */
function fieldsOf(agents) {
  const taken = agents.map(({ name }) => name).join("|");
  return [
    { name: "name", label: t("agents.new_name"), hint: t("agents.new_name_hint"), required: true, pattern: `(?!(?:${taken})$)[a-z][a-z0-9_\\-]{0,49}` },
    { name: "description", label: t("agents.description"), required: true },
    { name: "model", label: t("agents.model"), hint: t("agents.as_main") },
    { name: "tools", label: t("agents.tools"), hint: t("agents.new_tools_hint"), list: true },
    { name: "system_prompt", label: t("agents.prompt"), hint: t("agents.as_main"), long: true },
  ];
}

function toolsOf({ tools, mode }) {
  const listed = tools === null ? t("agents.all_tools") : tools.length > 0 ? tools.join(", ") : t("agents.no_tools");
  return mode === "plan" ? `${listed} · ${t("agents.plan")}` : listed;
}

/** Return the tools of an agent by the rule for them, as the permissions say now. */
function rulesOf({ tools, mode }, known) {
  const groups = new Map();
  const add = (rule, name) => groups.set(rule, [...(groups.get(rule) ?? []), name]);
  for (const { name, user, admin, changes_nothing: changesNothing } of known) {
    if ((tools !== null && !tools.includes(name)) || (mode === "plan" && !changesNothing)) continue;
    add(user === admin ? t(`agents.rule.${user}`) : t("agents.rule.both", { user: t(`agents.rule.${user}`), admin: t(`agents.rule.${admin}`) }), name);
  }
  for (const name of tools ?? []) if (!known.some((tool) => tool.name === name)) add(t("agents.rule.unknown"), name);
  return groups.size === 0 ? h("p", { class: "muted" }, t("agents.no_tools")) : factList([...groups].map(([rule, names]) => [rule, h("code", {}, names.join(", "))]));
}

function costOf({ usd, unpriced, calls }) {
  return calls > 0 && unpriced === calls ? t("money.no_price") : money(usd);
}

function columns() {
  return [
    { label: t("agents.agent"), show: (row) => h("span", { class: "who" }, icon("robot"), row.name), sort: (row) => row.name },
    { label: t("agents.model"), show: (row) => h("span", { class: "mono clip", title: row.model }, row.model || "–"), sort: (row) => row.model },
    { label: t("agents.from"), show: (row) => h("span", { class: "muted" }, t(`agents.origin.${row.origin}`)), sort: (row) => row.origin, class: "more" },
    { label: t("agents.conversations"), show: (row) => counted(row.conversations), sort: (row) => row.conversations, right: true, class: "more" },
    { label: t("agents.cost_days"), show: costOf, sort: (row) => row.usd, right: true },
  ];
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Agents(host, context);
  view.update(params);
  return view;
}
