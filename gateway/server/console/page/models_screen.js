/** Screen Models: providers with their keys, limits and cost, a test call, fallback chains, and models with prices. */
import { announce } from "/shared/announcer.js";
import { fill, h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, money, since } from "./amounts.js";
import { read } from "./api.js";
import { showCommand } from "./command_dialog.js";
import { keyForm, keyRow } from "./model_keys.js";
import { testForm } from "./model_test.js";
import { stateOf as stateInWords } from "./now_parts.js";
import { isPaused, tryNow } from "./provider_try.js";
import { addressOf } from "./router.js";
import { markRow, sourceOf } from "./setting_list.js";
import { word } from "./words.js";

const TONES = { closed: "good", failing: "warn", open: "bad", testing: "warn", rejected: "bad" };

class Models {
  #context;
  #asked = new AbortController();
  #found = null;
  #models = null;
  #place = { provider: "", key: "", model: "" };

  constructor(host, params, context) {
    this.#context = context;
    this.providers = new Table({ label: t("models.providers"), columns: providerColumns(), keyOf: ({ id }) => id, address: ({ id }) => addressOf("models", [id]), rowHeight: 46 });
    this.models = new Table({ label: t("models.models"), columns: modelColumns(), keyOf: ({ name }) => name, open: ({ model }) => this.#choose(model) });
    this.search = h("input", { type: "search", "aria-label": t("models.search"), placeholder: t("models.search"), autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", () => this.#showModels());
    this.providerCard = h("section", { class: "card" });
    this.modelBody = h("div");
    this.chains = h("section", { class: "card", "aria-labelledby": "models-chains", hidden: true });
    this.panel = h("section", { class: "card", "aria-labelledby": "models-panel", hidden: true });
    const modelCard = h("section", { class: "card" }, h("header", {}, h("h2", {}, t("models.models")), h("div", { class: "acts" }, this.search)), this.modelBody);
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("models.title")), h("p", { class: "muted" }, t("models.text"))), h("div", { class: "two set-up" }, h("div", { class: "stack" }, this.providerCard, this.chains, modelCard), this.panel));
    context.keys({
      j: { label: t("keys.next"), act: () => this.providers.move(1) },
      k: { label: t("keys.previous"), act: () => this.providers.move(-1) },
      "/": { label: t("models.search"), act: () => this.search.focus() },
    });
    this.update(params);
    this.#load();
    this.#loadModels();
  }

  dispose() {
    this.#asked.abort();
  }

  /** @param {import("./router.js").Params} params `/console/models/PROVIDER?key=2` opens the form of that key */
  update({ path, query }) {
    const before = this.#place;
    this.#place = { provider: path[0] ?? "", key: /\d+/.exec(query.get("key") ?? "")?.[0] ?? (query.has("key") ? "1" : ""), model: query.get("model") ?? "" };
    if (this.#found) this.#show(before.provider !== this.#place.provider || before.key !== this.#place.key);
  }

  async #load(focus = this.#place.provider !== "") {
    const loaded = showLoading(this.providerCard);
    try {
      this.#found = await read("/api/models/providers", {}, { signal: this.#asked.signal });
      this.#show(focus);
    } catch (error) {
      if (error.name !== "AbortError") this.providerCard.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  async #loadModels() {
    const loaded = showLoading(this.modelBody);
    try {
      this.#models = (await read("/api/models", {}, { signal: this.#asked.signal })).models;
      this.#showModels();
      // The rest of the panel stays: a key may be typed there.
      this.#offerModels();
    } catch (error) {
      if (error.name !== "AbortError") this.modelBody.replaceChildren(failedState({ text: error.message, again: () => this.#loadModels() }));
    } finally {
      loaded();
    }
  }

  /** Open the provider of a model, with the model in the test call. */
  #choose(model) {
    const provider = model.split("/")[0];
    this.#context.setQuery({ model }, [provider]);
    this.panel.querySelector("select")?.focus();
  }

  #show(focus) {
    const { providers } = this.#found;
    this.providers.setRows(providers);
    const shown = this.#shown;
    markRow(this.providers, (row) => row === shown);
    fill(this.providerCard, providers.length ? this.providers.element : emptyState({ icon: "chip", title: t("models.none"), text: t("models.none_text") }));
    this.#showChains();
    this.#showModels();
    this.#showPanel(focus);
  }

  #showChains() {
    const row = ({ agent, model, chain, source }) =>
      h("li", {}, h("span", { class: "grow" }, h("b", {}, agent), h("br"), h("code", {}, [model, ...chain].join(" → ")), source && h("small", { class: "muted" }, ` ${t("settings.from", { source: sourceOf({ source }) })}`)), chain.length === 0 && h("span", { class: "pill" }, t("models.no_chain")));
    this.chains.hidden = false;
    this.chains.replaceChildren(h("header", {}, h("h2", { id: "models-chains" }, t("models.chains"))), h("ul", { class: "rows" }, ...this.#found.chains.map(row)));
  }

  #showModels() {
    if (this.#models === null) return;
    const costs = new Map((this.#found?.costs ?? []).map((cost) => [cost.model, cost]));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.#models.filter(({ name, model }) => words.every((one) => `${name} ${model}`.toLowerCase().includes(one))).map((one) => ({ ...one, cost: costs.get(one.model) ?? costs.get(one.model.split("/").slice(1).join("/")) }));
    this.models.setRows(rows);
    const drop = () => ((this.search.value = ""), this.#showModels());
    fill(this.modelBody, rows.length ? this.models.element : nothingFound({ query: this.search.value, drop }));
  }

  /** The provider in the panel: that of the address, else the first. */
  get #shown() {
    const { providers } = this.#found;
    return this.#place.provider === "" ? providers[0] : providers.find(({ id }) => id === this.#place.provider);
  }

  #showPanel(focus) {
    if (!this.#found) return;
    const { key, model, provider } = this.#place;
    const one = this.#shown;
    this.panel.hidden = !one && provider === "";
    if (!one) return this.panel.replaceChildren(nothingFound({ query: provider, drop: () => this.#context.setQuery({}, []) }));
    const { isAdmin } = this.#context;
    const replaced = isAdmin && key !== "" && one.keys.find(({ position }) => String(position) === key);
    const rows = one.keys.map((each) => keyRow(each, isAdmin, () => (each.way === "terminal" ? showCommand({ label: each.reason, command: each.command }) : this.#context.setQuery({ key: String(each.position) }, [one.id]))));
    const form = replaced && (replaced.way === "terminal" ? h("p", { class: "warning" }, icon("warning"), h("span", {}, `${replaced.reason} `, h("code", {}, replaced.command))) : keyForm(one, replaced, (done) => this.#replaced(done), () => this.#context.setQuery({}, [one.id])));
    this.test = isAdmin ? testForm(one, model) : null;
    this.#offerModels();
    this.panel.replaceChildren(
      h("header", {}, h("h2", { id: "models-panel", tabindex: "-1" }, one.name), h("span", { class: `pill ${toneOf(one)}` }, stateOf(one)), ...(isAdmin && isPaused(one.state) ? [this.#tryButton(one)] : [])),
      h("div", { class: "body stack" }, facts(one), h("div", {}, h("h3", {}, t("models.keys")), h("ul", { class: "key-list" }, ...rows)), ...(form ? [form] : []), ...(this.test ? [this.test.form] : [])),
    );
    if (!focus) return;
    this.panel.scrollIntoView({ block: "nearest" });
    (this.panel.querySelector("input[type=password]") ?? this.panel.querySelector("h2")).focus({ preventScroll: true });
  }

  #offerModels() {
    this.test?.offer((this.#models ?? []).map(({ model }) => model));
  }

  #tryButton({ state, name }) {
    const act = async () => {
      if (await tryNow(state, this.#context)) await this.#load(true);
    };
    return h("button", { type: "button", class: "small", "aria-label": t("now.try_one", { name }), onclick: act }, icon("again"), t("states.again"));
  }

  #replaced({ alias, tested, in_effect: effect }) {
    announce([h("p", {}, [t("models.replaced", { key: alias }), tested, t(`models.effect.${effect}`)].filter(Boolean).join(" "))]);
    this.#context.setQuery({}, [this.#place.provider]);
    this.#load();
  }
}

function providerColumns() {
  const keys = ({ keys: all }) => all.filter(({ state }) => state === "usable").length;
  return [
    { label: t("models.provider"), show: (row) => row.name, sort: (row) => row.name },
    { label: t("models.state"), show: (row) => h("span", { class: `pill ${toneOf(row)}` }, stateOf(row)), sort: stateOf },
    { label: t("models.keys"), show: (row) => t("models.keys_of", { usable: keys(row), all: row.keys.length }), right: true, sort: keys },
    { label: t("models.limit"), show: (row) => limitOf(row.state), class: "more" },
    { label: t("money.calls"), show: (row) => counted(row.calls), sort: (row) => row.calls, right: true, class: "more" },
    { label: t("models.month"), show: (row) => (row.unpriced === row.calls && row.calls > 0 ? t("money.no_price") : money(row.usd)), sort: (row) => row.usd, right: true, class: "more" },
  ];
}

function modelColumns() {
  const price = (value) => (value === null ? "–" : money(value));
  return [
    { label: t("models.model"), show: ({ name, model }) => h("span", { class: "model-name" }, name, name === model ? null : h("small", { class: "muted" }, ` → ${model}`)), sort: ({ name }) => name },
    { label: t("models.price_in"), show: (row) => price(row.input_price), sort: (row) => row.input_price ?? -1, right: true },
    { label: t("models.price_out"), show: (row) => price(row.output_price), sort: (row) => row.output_price ?? -1, right: true },
    { label: t("models.window"), show: (row) => (row.context_window === null ? "–" : counted(row.context_window)), sort: (row) => row.context_window ?? 0, right: true, class: "more" },
    { label: t("models.can"), show: abilities, class: "more" },
    { label: t("models.cost"), show: ({ cost }) => (cost ? money(cost.usd) : "–"), sort: ({ cost }) => cost?.usd ?? 0, right: true, class: "more" },
  ];
}

/** Return what a model can do; what its provider does not say is unknown. */
function abilities({ images, tools }) {
  const known = [
    [images, "models.ability.images"],
    [tools, "models.ability.tools"],
  ];
  const able = known.filter(([value]) => value).map(([, name]) => t(name));
  if (able.length) return able.join(", ");
  return known.every(([value]) => value === null) ? h("span", { class: "muted" }, t("models.unknown")) : "–";
}

function facts({ id, plugin, endpoint, auth_method: auth, can, state, problem, usd, calls, unpriced }) {
  const rows = [
    [t("models.id"), h("code", {}, id)],
    plugin && [t("models.plugin"), plugin],
    endpoint && [t("models.endpoint"), h("code", {}, endpoint)],
    auth && [t("models.auth"), auth],
    can.length > 0 && [t("models.can"), can.map((name) => word(`models.ability.${name}`, name)).join(", ")],
    state && [t("models.limit"), limitOf(state)],
    state?.until && [t("models.until"), since(state.until)],
    [t("models.month"), `${money(usd)} · ${t("money.count", { count: counted(calls) })}${unpriced ? ` · ${t("models.unpriced", { count: counted(unpriced) })}` : ""}`],
    problem && [t("models.problem"), h("span", { class: "bad" }, problem)],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function toneOf({ state, problem, keys }) {
  if (problem || keys.some(({ state: one }) => one === "missing")) return "bad";
  return state ? (state.circuit === "closed" && state.held_keys === state.keys ? "warn" : TONES[state.circuit]) : "";
}

function stateOf({ state, problem, keys }) {
  if (problem) return t("models.wrong");
  if (keys.some(({ state: one }) => one === "missing")) return t("models.key.missing");
  if (!state) return t("models.not_called");
  return stateInWords(state);
}

/** Return the use of the limits of a provider in words. */
function limitOf(state) {
  if (!state) return "–";
  const limits = [
    [state.requests, state.requests_per_minute, "now.per_minute"],
    [state.tokens, state.tokens_per_minute, "now.tokens_per_minute"],
    [state.running, state.concurrency, "now.at_once"],
  ].filter(([, most]) => most);
  return limits.length ? limits.map(([used, most, words]) => t(words, { used: counted(used), most: counted(most) })).join(", ") : t("models.no_limit");
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  return new Models(host, params, context);
}
