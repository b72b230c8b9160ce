/** Screen Rooms: the chats that channels have seen, who answers there, when, for whom, and what it costs. */
import { fill, h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { ago, counted, moment, money } from "./amounts.js";
import { read } from "./api.js";
import { addressOf } from "./router.js";
import { roomText } from "./search_targets.js";
import { factList, formPart, markRow, newButton, settingList, showForm } from "./setting_list.js";
import { channelName, matching, shortChannel, shortId } from "./words.js";

class Rooms {
  #context;
  #asked = new AbortController();
  #opened = new AbortController();
  /** @type {any[] | null} null until they are read */
  #rooms = null;
  #query = {};
  /** @type {string[]} channel and chat of the one that is shown */
  #chosen = [];
  #shown = "";

  constructor(host, context) {
    this.#context = context;
    this.count = h("span", { class: "muted", role: "status" });
    this.search = h("input", { type: "search", "aria-label": t("rooms.search"), placeholder: t("rooms.search"), autocomplete: "off", spellcheck: "false", maxlength: 200 });
    this.channel = h("select", { "aria-label": t("rooms.channel") });
    this.add = h("span");
    this.list = h("section", { class: "card" });
    this.form = h("section", { class: "card form", "aria-label": t("rooms.one") });
    this.table = new Table({ label: t("rooms.title"), keyOf: (row) => row.id, address: (row) => addressOf("rooms", [row.channel, row.chat], this.#query), columns: columns(), rowHeight: 46 });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("rooms.title")), this.count, h("div", { class: "acts" }, this.channel, this.search, this.add)), h("div", { class: "set-up even" }, this.list, this.form));
    const filter = () => context.setQuery({ channel: this.channel.value, q: this.search.value.trim() });
    this.search.addEventListener("input", filter);
    this.channel.addEventListener("change", filter);
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
      "/": { label: t("rooms.search"), act: () => this.search.focus() },
    });
    this.#load();
  }

  dispose() {
    this.#asked.abort();
    this.#opened.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ path, query }) {
    this.#query = { channel: query.get("channel") ?? "", q: query.get("q") ?? "" };
    this.#chosen = path;
    if (document.activeElement !== this.search) this.search.value = this.#query.q;
    this.#draw();
    this.#open();
  }

  async #load() {
    const loaded = showLoading(this.list);
    try {
      const { rooms, tables } = await read("/api/console/rooms", {}, { signal: this.#asked.signal });
      if (this.#context.isAdmin && tables.length > 0 && this.add.children.length === 0) this.add.append(newButton(t("rooms.new"), () => fieldsOf(tables), (values) => takePlace(values, tables)));
      this.#rooms = rooms.map((room) => ({ ...room, id: `${room.channel}\n${room.account}\n${room.chat}` }));
      this.#draw();
      this.#shown = "";
      this.#open();
    } catch (error) {
      if (error.name !== "AbortError") this.list.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #draw() {
    if (this.#rooms === null) return;
    const { channel, q } = this.#query;
    const channels = [...new Set([...this.#rooms.map((room) => room.channel), channel].filter(Boolean))].sort();
    this.channel.replaceChildren(...[["", t("rooms.all")], ...channels.map((name) => [name, channelName(name)])].map(([value, label]) => h("option", { value, selected: value === channel }, label)));
    const rows = matching(this.#rooms, q, roomText).filter((room) => channel === "" || room.channel === channel);
    this.count.textContent = t("rooms.count", { count: counted(rows.length) });
    this.table.setRows(rows);
    const drop = () => ((this.search.value = ""), this.#context.setQuery({}));
    const none = () => (this.#rooms.length === 0 ? emptyState({ icon: "hash", title: t("rooms.empty"), text: t("rooms.empty_text") }) : nothingFound({ query: q, filters: channel, drop }));
    fill(this.list, rows.length === 0 ? none() : this.table.element);
  }

  /** Show the form of the chosen room; the same one stays as it is. */
  async #open() {
    if (this.#rooms === null) return;
    const [channel = "", chat = ""] = this.#chosen;
    if (this.#shown === `${channel}\n${chat}`) return;
    this.#shown = `${channel}\n${chat}`;
    this.#opened.abort();
    this.#opened = new AbortController();
    const room = this.#rooms.find((one) => one.channel === channel && one.chat === chat);
    markRow(this.table, (row) => row === room);
    if (chat === "") return this.form.replaceChildren(emptyState({ icon: "hash", title: t("rooms.none_open"), text: t("rooms.none_open_text") }));
    if (!room) return this.form.replaceChildren(emptyState({ icon: "hash", title: t("rooms.unknown"), text: t("rooms.unknown_text") }));
    const { signal } = this.#opened;
    try {
      this.form.replaceChildren(...this.#view(room, await read("/api/console/room", { channel, chat }, { signal })));
      showForm(this.form);
    } catch (error) {
      const again = () => ((this.#shown = ""), this.#open());
      if (error.name !== "AbortError") this.form.replaceChildren(failedState({ text: error.message, again }));
    }
  }

  #view(room, { settings, texts = [], conversations, fixed }) {
    const one = conversations.length === 1 ? { session: conversations[0].session } : { channel: room.channel };
    const to = (screen, path, query, text) => (this.#context.has(screen) ? h("a", { href: addressOf(screen, path, query) }, text) : text);
    const talk = ({ session, title, updated_at: at, usd }) =>
      h("li", {}, h("span", { class: "grow" }, to("conversations", [session], {}, title || shortId(session)), h("br"), h("span", { class: "muted" }, ago(at))), to("money", [], { session, by: "model", days: "30" }, h("span", { class: "num" }, money(usd))));
    return [
      h("header", {}, h("h2", {}, nameOf(room)), stateOf(room)),
      h(
        "div",
        { class: "body stack" },
        factList([
          [t("rooms.channel"), channelName(room.channel)],
          [t("rooms.account"), room.account],
          [t("rooms.chat"), h("code", {}, room.chat)],
          [t("rooms.kind"), t(`rooms.kind.${room.kind}`)],
          [t("rooms.writes"), [writersOf(room), room.allow === null ? "" : t("rooms.paired")].filter(Boolean).join(" ")],
          [t("rooms.seen"), room.seen_at === null ? t("rooms.never") : h("time", { datetime: new Date(room.seen_at).toISOString() }, `${moment(room.seen_at)} (${ago(room.seen_at)})`)],
          [t("agents.cost"), to("money", [], { ...one, by: "model", days: "30" }, costOf(room))],
        ]),
        room.state !== "on" && h("p", { class: "muted" }, t(`rooms.state_text.${room.state}`)),
        fixed && this.#context.isAdmin && h("p", { class: "muted" }, t(`rooms.fixed.${fixed}`)),
      ),
      fixed !== "no-rooms" && settingList([...settings, ...texts], { changed: () => this.#load(), fixed: Boolean(fixed) || !this.#context.isAdmin }),
      formPart(t("rooms.conversations"), conversations.length === 0 ? h("p", { class: "muted" }, t("rooms.no_conversations")) : h("ul", { class: "rows" }, ...conversations.map(talk))),
    ].filter(Boolean);
  }
}

/** Return the fields of a new room. @param {{channel: string, path: string[]}[]} tables of the channels */
function fieldsOf(tables) {
  const rules = ["", "mention", "reply", "command", "always"].map((rule) => [rule, rule ? t(`rooms.groups.${rule}`) : t("rooms.as_channel")]);
  return [
    { name: "channel", label: t("rooms.channel"), choices: tables.map(({ channel }) => [channel, channelName(channel)]) },
    { name: "chat", label: t("rooms.chat"), hint: t("rooms.new_chat_hint"), required: true },
    { name: "agent", label: t("rooms.agent"), hint: t("rooms.as_channel") },
    { name: "groups", label: t("rooms.answers"), choices: rules },
    { name: "system_prompt", label: t("agents.prompt"), hint: t("rooms.new_prompt_hint"), long: true },
  ];
}

/** Return the path of a new room, and leave its settings. */
function takePlace(values, tables) {
  const { path } = tables.find(({ channel }) => channel === values.channel);
  const { chat } = values;
  delete values.channel;
  delete values.chat;
  return [...path, "rooms", chat];
}

function nameOf({ name, chat }) {
  return name || chat;
}

function stateOf({ state }) {
  return state === "on" ? null : h("span", { class: state === "gone" ? "pill warn" : "pill" }, t(`rooms.state.${state}`));
}

function writersOf({ allow }) {
  return allow === null ? t("rooms.everyone") : t("rooms.listed", { count: counted(allow) });
}

function costOf({ usd, unpriced, calls }) {
  return calls > 0 && unpriced === calls ? t("money.no_price") : money(usd);
}

function columns() {
  const name = (room) => h("span", { class: "who" }, h("span", { class: "channel", title: room.channel }, shortChannel(room.channel)), h("span", { class: "clip", title: room.chat }, nameOf(room)), stateOf(room));
  const rule = (room) => (room.kind === "private" ? t("rooms.kind.private") : t(`rooms.groups.${room.groups}`));
  return [
    { label: t("rooms.room"), show: name, sort: (room) => nameOf(room).toLowerCase() },
    { label: t("rooms.agent"), show: (room) => room.agent, sort: (room) => room.agent },
    { label: t("rooms.answers"), show: rule, sort: rule, class: "more" },
    { label: t("rooms.writes"), show: writersOf, sort: (room) => room.allow ?? Infinity, class: "more" },
    { label: t("rooms.seen"), show: (room) => (room.seen_at === null ? "–" : h("time", { datetime: new Date(room.seen_at).toISOString(), title: moment(room.seen_at) }, ago(room.seen_at))), sort: (room) => room.seen_at ?? 0, right: true },
    { label: t("agents.cost_days"), show: costOf, sort: (room) => room.usd, right: true, class: "more" },
  ];
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Rooms(host, context);
  view.update(params);
  return view;
}
