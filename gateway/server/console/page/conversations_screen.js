/** Screen Conversations: find one by its words or by filters, and read it with what each turn did. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { marked } from "/shared/marked.js";
import { emptyState, failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, money, since } from "./amounts.js";
import { read } from "./api.js";
import { Conversation } from "./conversation_view.js";
import { addressOf } from "./router.js";
import { otherFinds } from "./search_targets.js";
import { markRow } from "./setting_list.js";
import { shortChannel, shortId } from "./words.js";

/** Filters that may be written as `name:value`. */
const CHIPS = ["channel", "person", "agent", "model", "cost", "error", "since"];
const SORTS = ["newest", "cost", "errors"];
const FOUND_SORTS = ["newest", "match"];
const PAGE = 500;
/** Pages that are read at once to find something which passes the filters; the gateway reads a bounded part for each. */
const MOST_PAGES = 20;
const WANTED = 250;
const NEAR_END_PX = 1_200;
/** Times that a search is repeated, a second apart, while the gateway puts new messages into its index. */
const MOST_REPEATS = 30;
const REPEAT_MS = 1_000;

class Conversations {
  #context;
  #asked = new AbortController();
  #opened = new AbortController();
  #query = {};
  #session = null;
  #rows = [];
  #sort = "";
  #next = null;
  #loading = false;
  #repeat = 0;

  constructor(host, context) {
    this.#context = context;
    this.host = host;
    host.classList.add("conversations");
    this.count = h("span", { class: "muted", role: "status" });
    this.input = h("input", { type: "search", id: "conversations-search", "aria-label": t("talks.search"), placeholder: t("talks.search"), autocomplete: "off", spellcheck: "false", maxlength: 400, enterkeyhint: "search" });
    this.chips = h("span", { class: "chips" });
    this.form = h("form", { class: "talks-find", role: "search", "aria-label": t("talks.title") }, icon("search"), this.chips, this.input);
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.#search()));
    this.others = h("p", { class: "acts", hidden: true });
    this.order = h("div", { class: "seg", role: "group", "aria-label": t("talks.sort") });
    this.list = h("div", { class: "card talks-list" });
    this.detail = h("section", { class: "card talk", "aria-label": t("talks.one") });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("talks.title")), this.count), this.form, h("p", { class: "muted hint" }, t("talks.hint")), this.others, this.order, h("div", { class: "talks" }, this.list, this.detail));
    this.further = h("button", { type: "button", class: "more-hits", onclick: () => this.#further() }, t("talks.more"));
    context.keys({
      j: { label: t("keys.next"), act: () => this.table?.move(1) },
      k: { label: t("keys.previous"), act: () => this.table?.move(-1) },
      "/": { label: t("talks.search"), act: () => this.input.focus() },
    });
  }

  dispose() {
    clearTimeout(this.#repeat);
    this.#asked.abort();
    this.#opened.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ path, query }) {
    const asked = Object.fromEntries(["q", "sort", ...CHIPS].map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
    if (JSON.stringify(asked) !== JSON.stringify(this.#query) || !this.list.hasChildNodes()) {
      this.#query = asked;
      this.#load();
    }
    const session = path[0] ?? null;
    this.host.classList.toggle("opened", session !== null);
    if (session === this.#session && this.detail.hasChildNodes()) return;
    this.#session = session;
    this.#mark();
    this.#opened.abort();
    this.#opened = new AbortController();
    if (session === null) this.detail.replaceChildren(emptyState({ icon: "talks", title: t("talks.none_open"), text: t("talks.none_open_text") }));
    else new Conversation(this.detail, session, this.#context, { signal: this.#opened.signal, back: addressOf("conversations", [], this.#query), gone: () => this.#gone() }).load();
  }

  /** Return a table of rows that open a conversation. */
  #table(label, rowHeight, idsOf, shown) {
    const table = new Table({ label: t(label), keyOf: (row) => idsOf(row)[1], address: (row) => addressOf("conversations", [idsOf(row)[0]], this.#query), rowHeight, columns: shown });
    table.element.addEventListener("scroll", ({ target: { scrollTop, clientHeight, scrollHeight } }) => scrollTop + clientHeight > scrollHeight - NEAR_END_PX && this.#further(), { passive: true });
    return table;
  }

  /** Put the words and the filters of the field into the address. */
  #search() {
    const asked = Object.fromEntries(CHIPS.map((name) => [name, this.#query[name] ?? ""]));
    const words = this.input.value.split(/\s+/).filter((word) => {
      const [, name, value] = /^(\w+):(.+)$/.exec(word) ?? [];
      if (!CHIPS.includes(name)) return true;
      asked[name] = value;
      return false;
    });
    this.#context.open("conversations", [], { ...asked, sort: this.#query.sort, q: words.join(" ").trim() });
  }

  #drop(name) {
    this.#context.open("conversations", [], { ...this.#query, [name]: "" });
    this.input.focus();
  }

  /** Return the filters as the gateway takes them. */
  get #filters() {
    const { channel, person, agent, model, cost, error, since: from } = this.#query;
    // A day begins in the viewer's zone; alone it would be read as one of UTC.
    const at = Date.parse(/^\d{4}-\d\d-\d\d$/.test(from) ? `${from}T00:00` : from);
    return { channel, person, agent, model, error, cost: cost && (Number(cost.replace(/[^\d.]/g, "")) || 0), since: Number.isNaN(at) ? undefined : at };
  }

  async #load() {
    clearTimeout(this.#repeat);
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#loading = false;
    this.input.value = this.#query.q ?? "";
    this.chips.replaceChildren(...CHIPS.filter((name) => this.#query[name]).map((name) => this.#chip(name)));
    const sorts = this.#query.q ? FOUND_SORTS : SORTS;
    const chosen = (this.#sort = sorts.includes(this.#query.sort) ? this.#query.sort : sorts[0]);
    this.order.replaceChildren(...sorts.map((sort) => h("a", { href: addressOf("conversations", [], { ...this.#query, sort: sort === SORTS[0] ? "" : sort }), "aria-current": sort === chosen ? "true" : undefined }, t(`talks.sort.${sort}`))));
    this.table = this.#query.q ? this.#table("talks.hits", 68, ({ session, message_id: id }) => [session, `${session} ${id}`], [{ label: t("talks.hits"), show: hit, unnamed: true }]) : this.#table("talks.list", 46, ({ id }) => [id, id], columns());
    this.list.replaceChildren();
    this.count.textContent = "";
    this.#showOthers();
    const loaded = showLoading(this.list);
    try {
      await this.#list();
    } catch (error) {
      if (error.name !== "AbortError") this.list.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  /** Show what else has the words, if the search has no filters. */
  async #showOthers() {
    this.others.hidden = true;
    const { q, sort: _order, ...filters } = this.#query;
    if (!q || Object.keys(filters).length > 0) return;
    const { signal } = this.#asked;
    const found = await otherFinds(q, { signal }).catch(() => []);
    if (signal.aborted || found.length === 0) return;
    this.others.hidden = false;
    this.others.replaceChildren(t("talks.also"), ...found.map(([address, label]) => h("a", { href: address }, label)));
  }

  #chip(name) {
    const chip = h("button", { type: "button", class: "chip", onclick: () => this.#drop(name) }, `${name}: ${this.#query[name]}`, icon("cross"), h("span", { class: "offscreen" }, t("money.drop")));
    chip.addEventListener("keydown", ({ key }) => (key === "Delete" || key === "Backspace") && this.#drop(name));
    return chip;
  }

  /** Read the first rows; while the index lacks new messages, search again, unless the user went on in the list. */
  async #list(repeats = 0) {
    const { signal } = this.#asked;
    const searched = Boolean(this.#query.q);
    this.#rows = [];
    this.#next = "";
    const behind = await this.#more();
    if (signal.aborted) return;
    if (behind && repeats < MOST_REPEATS) this.#repeat = setTimeout(() => signal.aborted || this.#loading || this.table.element.scrollTop || this.list.contains(document.activeElement) || this.#list(repeats + 1).catch(() => {}), REPEAT_MS);
    if (this.#rows.length > 0) return this.list.replaceChildren(this.table.element, this.further);
    const filters = this.#said();
    if (!searched && !filters && !this.#query.sort) return this.list.replaceChildren(emptyState({ icon: "talks", title: t("talks.empty"), text: t("talks.empty_text") }));
    const drop = () => this.#context.open("conversations", [], { q: this.#query.q });
    this.list.replaceChildren(nothingFound(searched ? { query: this.#query.q, filters, drop: filters && drop } : { query: filters || t(`talks.sort.${this.#sort}`), drop }));
  }

  #said() {
    return CHIPS.filter((name) => this.#query[name]).map((name) => `${name}: ${this.#query[name]}`).join(", ");
  }

  /** Read pages until some rows pass the filters, or there are no more. Return whether the index lacks new messages. */
  async #more() {
    if (this.#next === null || this.#loading) return false;
    this.#loading = true;
    const { signal } = this.#asked;
    const { q } = this.#query;
    let late = false;
    try {
      const wanted = this.#rows.length + WANTED;
      for (let page = 0; page < MOST_PAGES && this.#next !== null && this.#rows.length < wanted; page++) {
        const { sessions, results = sessions, next, behind } = await read(q ? "/api/search" : "/api/sessions", { q, limit: q ? 100 : PAGE, ...this.#filters, sort: this.#sort, [q ? "cursor" : "before"]: this.#next }, { signal });
        this.#rows.push(...results);
        this.#next = next;
        late ||= behind;
      }
    } finally {
      if (!signal.aborted) this.#loading = false;
    }
    this.table.setRows(this.#rows);
    this.#mark();
    // A table that is not full does not scroll.
    this.further.hidden = this.#next === null || this.table.isWindowed;
    const count = this.#rows.length;
    const words = q ? "talks.found" : "talks.count";
    this.count.textContent = t(this.#next !== null ? `${words}_more` : words, { count: counted(count) });
    return late;
  }

  /** Mark the row of the open conversation. */
  #mark() {
    markRow(this.table, ({ id, session }) => (session ?? id) === this.#session);
  }

  #further() {
    this.#more().catch((error) => error.name === "AbortError" || this.#context.notify(error.message));
  }

  /** Go back to the list after the conversation was deleted. */
  #gone() {
    this.#rows = this.#rows.filter(({ id }) => id !== this.#session);
    this.list.replaceChildren();
    this.#context.open("conversations", [], this.#query);
  }
}

function hit({ session, title, snippet, matches, created_at: at }) {
  return h("span", { class: "two-lines" }, h("span", { class: "who" }, h("b", { class: "clip" }, title || shortId(session)), h("time", { class: "muted num end" }, since(at))), h("span", { class: "snippet" }, ...marked(snippet, matches)));
}

function columns() {
  const costOf = ({ usage }) => (usage.cost === null ? "–" : money(usage.cost));
  const talk = ({ id, title, channel, agent, messages, usage }) => h("span", { class: "who" }, h("span", { class: "channel", title: channel }, shortChannel(channel)), h("span", { class: "two-lines" }, h("b", { class: "clip" }, title || shortId(id)), h("span", { class: "muted clip" }, `${agent} · ${t("talks.messages", { count: counted(messages) })}`, h("span", { class: "with-cost" }, ` · ${costOf({ usage })}`))));
  const state = ({ status, updated_at: at }) => h("span", { class: "two-lines" }, h("span", {}, since(at)), status === "idle" ? "" : h("span", { class: status === "waiting" ? "warn" : "good" }, t(`talks.status.${status}`)));
  return [
    { label: t("talks.conversation"), show: talk },
    { label: t("talks.cost"), show: costOf, right: true, class: "cost" },
    { label: t("talks.last"), show: state, right: true, class: "last" },
  ];
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Conversations(host, context);
  view.update(params);
  return view;
}
