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
import { shortChannel, shortId } from "./words.js";

/** Filters that may be written as `name:value`. */
const CHIPS = ["channel", "person", "agent", "model", "cost", "error", "since"];
const SORTS = ["newest", "cost", "errors"];
const PAGE = 500;
/** Pages that are read at once to find something which passes the filters; the gateway reads a bounded part for each. */
const MOST_PAGES = 20;
const WANTED = 100;
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
    this.order = h("div", { class: "seg", role: "group", "aria-label": t("talks.sort") });
    this.list = h("div", { class: "card talks-list" });
    this.detail = h("section", { class: "card talk", "aria-label": t("talks.one") });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("talks.title")), this.count), this.form, h("p", { class: "muted hint" }, t("talks.hint")), this.order, h("div", { class: "talks" }, this.list, this.detail));
    this.table = new Table({ label: t("talks.list"), keyOf: (row) => row.id, address: (row) => this.#address(row.id), rowHeight: 46, columns: columns() });
    this.table.element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    context.keys({
      j: { label: t("keys.next"), act: () => this.#walk(1) },
      k: { label: t("keys.previous"), act: () => this.#walk(-1) },
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
    this.#opened.abort();
    this.#opened = new AbortController();
    if (session === null) this.detail.replaceChildren(emptyState({ icon: "talks", title: t("talks.none_open"), text: t("talks.none_open_text") }));
    else new Conversation(this.detail, session, this.#context, { signal: this.#opened.signal, back: addressOf("conversations", [], this.#query), gone: () => this.#gone() }).load();
  }

  #address(session) {
    return addressOf("conversations", [session], this.#query);
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
    const at = Date.parse(from);
    return { channel, person, agent, model, error, cost: cost && (Number(cost.replace(/[^\d.]/g, "")) || 0), since: Number.isNaN(at) ? undefined : at };
  }

  async #load() {
    clearTimeout(this.#repeat);
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#loading = false;
    this.input.value = this.#query.q ?? "";
    this.chips.replaceChildren(...CHIPS.filter((name) => this.#query[name]).map((name) => this.#chip(name)));
    this.order.hidden = Boolean(this.#query.q);
    const chosen = this.#query.sort ?? SORTS[0];
    this.order.replaceChildren(...SORTS.map((sort) => h("a", { href: addressOf("conversations", [], { ...this.#query, sort: sort === SORTS[0] ? "" : sort }), "aria-current": sort === chosen ? "true" : undefined }, t(`talks.sort.${sort}`))));
    this.list.replaceChildren();
    this.count.textContent = "";
    const loaded = showLoading(this.list);
    try {
      if (this.#query.q) await this.#find(0);
      else await this.#browse();
    } catch (error) {
      if (error.name !== "AbortError") this.list.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #chip(name) {
    const chip = h("button", { type: "button", class: "chip", onclick: () => this.#drop(name) }, `${name}: ${this.#query[name]}`, icon("cross"), h("span", { class: "offscreen" }, t("money.drop")));
    chip.addEventListener("keydown", ({ key }) => (key === "Delete" || key === "Backspace") && this.#drop(name));
    return chip;
  }

  async #browse() {
    this.#rows = [];
    this.#next = "";
    const { signal } = this.#asked;
    await this.#more();
    if (signal.aborted) return;
    if (this.#rows.length > 0) return this.list.replaceChildren(this.table.element);
    const filters = this.#said();
    this.list.replaceChildren(filters || this.#query.sort ? nothingFound({ query: filters || t(`talks.sort.${this.#query.sort}`), drop: () => this.#context.open("conversations") }) : emptyState({ icon: "talks", title: t("talks.empty"), text: t("talks.empty_text") }));
  }

  #said() {
    return CHIPS.filter((name) => this.#query[name]).map((name) => `${name}: ${this.#query[name]}`).join(", ");
  }

  /** Read pages until some conversations pass the filters, or there are no more. */
  async #more() {
    if (this.#next === null || this.#loading) return;
    this.#loading = true;
    const { signal } = this.#asked;
    try {
      const wanted = this.#rows.length + WANTED;
      for (let page = 0; page < MOST_PAGES && this.#next !== null && this.#rows.length < wanted; page++) {
        const { sessions, next } = await read("/api/sessions", { limit: PAGE, ...this.#filters, sort: this.#query.sort, before: this.#next }, { signal });
        this.#rows.push(...sessions);
        this.#next = next;
      }
    } finally {
      if (!signal.aborted) this.#loading = false;
    }
    this.table.setRows(this.#rows);
    this.count.textContent = t(this.#next !== null ? "talks.count_more" : this.#rows.length === 1 ? "talks.count_one" : "talks.count", { count: counted(this.#rows.length) });
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.table.element;
    if (scrollTop + clientHeight > scrollHeight - NEAR_END_PX) this.#more().catch((error) => error.name === "AbortError" || this.#context.notify(error.message));
  }

  /** Search; while the index lacks new messages, search again, unless the user went on in the list. */
  async #find(repeats) {
    const found = await this.#matches("");
    if (repeats > 0 && this.list.contains(document.activeElement)) return;
    this.hits = h("ul", { class: "rows hits" });
    this.#append(found);
    const { signal } = this.#asked;
    if (!found.behind || repeats >= MOST_REPEATS) return;
    this.#repeat = setTimeout(() => signal.aborted || this.#find(repeats + 1).catch(() => {}), REPEAT_MS);
  }

  async #matches(cursor) {
    const { signal } = this.#asked;
    const all = { results: [], next: cursor, behind: false };
    for (let page = 0; page < MOST_PAGES && all.next !== null && all.results.length < WANTED; page++) {
      const { results, next, behind } = await read("/api/search", { q: this.#query.q, limit: 50, ...this.#filters, cursor: all.next }, { signal });
      all.results.push(...results);
      all.next = next;
      all.behind ||= behind;
    }
    return all;
  }

  #append({ results, next }) {
    const more = next && h("button", { type: "button", class: "more-hits", onclick: () => this.#matches(next).then((found) => (more.remove(), this.#append(found))).catch((error) => this.#context.notify(error.message)) }, t("talks.more"));
    this.hits.append(...results.map((hit) => this.#hit(hit)));
    const count = this.hits.childElementCount;
    this.count.textContent = t(next ? "talks.found_more" : "talks.found", { count: counted(count) });
    const filters = this.#said();
    this.list.replaceChildren(count ? this.hits : nothingFound({ query: this.#query.q, filters, drop: filters ? () => this.#context.open("conversations", [], { q: this.#query.q }) : undefined }), ...(more ? [more] : []));
  }

  #hit({ session, title, snippet, matches, created_at: at }) {
    return h("li", {}, h("a", { class: "grow hit", href: this.#address(session) }, h("span", { class: "who" }, h("b", {}, title || shortId(session)), h("time", { class: "muted num end" }, since(at))), h("span", { class: "snippet" }, ...marked(snippet, matches))));
  }

  #walk(by) {
    if (!this.#query.q) return this.table.move(by);
    const links = [...this.list.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? 0 : Math.max(0, Math.min(at + by, links.length - 1))]?.focus();
  }

  /** Go back to the list after the conversation was deleted. */
  #gone() {
    this.#rows = this.#rows.filter(({ id }) => id !== this.#session);
    this.list.replaceChildren();
    this.#context.open("conversations", [], this.#query);
  }
}

function columns() {
  const talk = ({ id, title, channel, agent, messages }) => h("span", { class: "who" }, h("span", { class: "channel", title: channel }, shortChannel(channel)), h("span", { class: "two-lines" }, h("b", { class: "clip" }, title || shortId(id)), h("span", { class: "muted clip" }, `${agent} · ${t(messages === 1 ? "talks.message" : "talks.messages", { count: counted(messages) })}`)));
  const state = ({ status, updated_at: at }) => h("span", { class: "two-lines" }, h("span", {}, since(at)), status === "idle" ? "" : h("span", { class: status === "waiting" ? "warn" : "good" }, t(`talks.status.${status}`)));
  return [
    { label: t("talks.conversation"), show: talk },
    { label: t("talks.cost"), show: ({ usage }) => (usage.cost === null ? "–" : money(usage.cost)), right: true, class: "cost" },
    { label: t("talks.last"), show: state, right: true, class: "last" },
  ];
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Conversations(host, context);
  view.update(params);
  return view;
}
