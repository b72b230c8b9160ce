/** Screen Money: what model calls cost, what they will cost, and whether the budgets hold. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, millions, money, percent } from "./amounts.js";
import { read } from "./api.js";
import { dayChart, dayName } from "./day_chart.js";
import { budgetsCard } from "./money_budgets.js";
import { addressOf } from "./router.js";
import { shortChannel, shortId, word } from "./words.js";

const SPLITS = ["provider", "model", "agent", "channel", "person", "plugin", "room"];
/** The filter that a key of a grouping becomes, and the grouping that then says more. */
const DEEPER = { provider: ["provider", "model"], model: ["model", "agent"], agent: ["agent", "model"], channel: ["channel", "person"], person: ["user", "model"], plugin: ["plugin", "model"], room: ["room", "person"] };
const FILTERS = ["provider", "model", "agent", "channel", "user", "plugin", "room", "session"];
/** Groups with a colour of their own; the rest is drawn together. */
const COLOURS = [1, 3, 2, 4];
const OTHERS = 5;

class Money {
  #context;
  #asked = new AbortController();
  #split = "provider";
  #days = 31;
  #filters = {};
  /** Names of rooms by key. @type {Map<string, string>} */
  #rooms = new Map();

  constructor(host, context) {
    this.#context = context;
    this.periods = segments(t("money.period"), ["1", "7", "31", "month"].map((name) => [name, t(`money.days.${name}`)]), (days) => this.#change({ days }));
    this.splits = segments(t("money.group_by"), SPLITS.map((name) => [name, t(`money.by.${name}`)]), (by) => this.#change({ by }));
    this.csv = h("a", { class: "button", download: true, hidden: !context.session.reads_messages }, icon("download"), "CSV");
    this.body = h("div", { class: "stack money" });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("money.title")), h("div", { class: "acts" }, this.periods, this.csv)), this.body);
  }

  dispose() {
    this.#asked.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ query }) {
    this.#asked.abort();
    this.#asked = new AbortController();
    const days = query.get("days") ?? "31";
    this.#split = SPLITS.includes(query.get("by")) ? query.get("by") : "provider";
    this.#days = days === "month" ? new Date().getUTCDate() : Math.max(1, Math.min(366, Number(days) || 31));
    this.#filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
    press(this.periods, days);
    press(this.splits, this.#split);
    this.csv.href = `/api/usage?${new URLSearchParams({ ...this.#query(), format: "csv" })}`;
    this.#load();
  }

  #query() {
    return { by: "day", split: this.#split, days: String(this.#days), ...this.#filters };
  }

  /** Put a change of the period, the grouping or the filters into the address. */
  #change(change) {
    const now = Object.fromEntries(new URLSearchParams(location.search));
    this.#context.setQuery({ ...now, ...change });
  }

  async #load() {
    const loaded = showLoading(this.body);
    try {
      const { signal } = this.#asked;
      const [report, rooms] = await Promise.all([read("/api/usage", this.#query(), { signal }), this.#split === "room" || this.#filters.room ? read("/api/console/rooms", {}, { signal }) : null]);
      if (rooms) this.#rooms = new Map(rooms.rooms.map(({ channel, chat, name }) => [`${channel}:${chat}`, name]));
      this.#show(report);
    } catch (error) {
      if (error.name !== "AbortError") this.body.replaceChildren(h("section", { class: "card" }, failedState({ text: error.message, again: () => this.#load() })));
    } finally {
      loaded();
    }
  }

  #show(report) {
    const chips = Object.entries(this.#filters).map(([name, value]) => h("button", { type: "button", class: "small", onclick: () => this.#change({ [name]: "" }) }, `${word(`money.by.${name === "user" ? "person" : name}`, name)}: ${name === "room" ? this.#name(value) : value}`, icon("cross"), h("span", { class: "offscreen" }, t("money.drop"))));
    this.body.replaceChildren(
      ...(chips.length ? [h("div", { class: "acts" }, ...chips)] : []),
      this.#sum(report),
      h("div", { class: "two" }, h("div", { class: "stack" }, this.#chart(report), this.#table(report)), h("div", { class: "stack" }, ...budgetsCard(report.budgets), this.#dearest(report.top), ...unpriced(report.unpriced))),
    );
  }

  /** Return the name of a group: of a room what people call it. */
  #name(key) {
    return this.#rooms.get(key) || key || t(this.#split === "room" ? "money.deleted" : "money.nobody");
  }

  #sum({ total, previous, projection }) {
    const [now, before] = [Number(total.usd), Number(previous.usd)];
    const change = before > 0 ? t(now >= before ? "money.more" : "money.less", { share: percent(Math.abs(now / before - 1)), days: this.#days }) : t("money.first");
    const today = projection.expected_usd === null ? t("money.so_far", { usd: money(projection.usd) }) : t("money.pace", { usd: money(projection.usd), expected: money(projection.expected_usd) });
    return h("div", { class: "sum" }, h("strong", { class: "num" }, money(total.usd)), h("p", {}, `${t(this.#days === 1 ? "money.in_day" : "money.in_days", { days: this.#days })}, ${change} · ${today}`));
  }

  #chart(report) {
    const [groups, colours] = grouped(report.splits, (key) => this.#name(key));
    const days = report.rows.map(({ key, usd, parts }) => {
      const sums = groups.map(() => 0);
      for (const part of parts) sums[colours.get(part.key) ?? groups.length - 1] += Number(part.usd);
      return { key, usd: Number(usd), parts: sums };
    });
    const card = h("section", { class: "card", "aria-labelledby": "money-days" }, h("header", {}, h("h2", { id: "money-days" }, t("money.by_day")), this.splits));
    if (days.length === 0) card.append(emptyState({ icon: "money", title: t("money.none"), text: t("money.none_text") }));
    else {
      const cap = report.budgets.find(({ scope, per, stop }) => scope === "all" && per === "day" && stop !== null);
      const expected = Object.keys(this.#filters).length || report.projection.expected_usd === null ? null : Number(report.projection.expected_usd);
      card.append(dayChart({ label: t("money.chart", { group: t(`money.by.${this.#split}`) }), days, groups, cap: cap ? Number(cap.stop) : null, expected }), figures(days, groups));
    }
    return card;
  }

  #table({ splits, total }) {
    const whole = Number(total.usd) || 1;
    const [, colours] = grouped(splits, (key) => this.#name(key));
    const share = (row) => {
      const bar = h("i", { "data-colour": colourOf(colours, row.key) });
      bar.style.setProperty("width", `${(100 * Number(row.usd)) / Math.max(...splits.map(({ usd }) => Number(usd)), 1e-9)}%`);
      return h("span", { class: "share" }, h("span", { class: "bar", "aria-hidden": "true" }, bar), h("span", { class: "muted" }, percent(Number(row.usd) / whole)));
    };
    const columns = [
      { label: t(`money.by.${this.#split}`), show: (row) => h("span", { class: "clip", title: row.key }, this.#name(row.key)), sort: (row) => this.#name(row.key) },
      { label: t("money.share"), show: share },
      { label: t("money.calls"), show: (row) => counted(row.calls), sort: (row) => row.calls, right: true },
      { label: t("money.tokens_in"), show: (row) => millions(row.input_tokens), sort: (row) => row.input_tokens, right: true, class: "more" },
      { label: t("money.cached"), show: (row) => (row.cached_tokens ? percent(row.cached_tokens / row.input_tokens) : "–"), sort: (row) => row.cached_tokens / (row.input_tokens || 1), right: true, class: "more" },
      { label: t("money.tokens_out"), show: (row) => millions(row.output_tokens), sort: (row) => row.output_tokens, right: true, class: "more" },
      { label: t("money.change"), show: change, sort: (row) => Number(row.usd) - Number(row.previous_usd ?? 0), right: true, class: "more" },
      { label: t("money.cost"), show: (row) => h("b", {}, money(row.usd)), sort: (row) => Number(row.usd), right: true },
    ];
    const [filter, deeper] = DEEPER[this.#split];
    const table = new Table({ label: t(`money.table.${this.#split}`), columns, keyOf: (row) => row.key, open: (row) => row.key && this.#change({ [filter]: row.key, by: deeper }) });
    table.setRows(splits);
    return h("section", { class: "card spend" }, h("header", {}, h("h2", {}, t(`money.table.${this.#split}`)), h("span", { class: "muted end" }, callsOf(total.calls))), splits.length ? table.element : emptyState({ icon: "money", title: t("money.none"), text: t("money.none_text") }));
  }

  #dearest(top) {
    const only = (session, name) => (session && session !== this.#filters.session ? h("button", { type: "button", class: "small", title: t("money.only", { name }), "aria-label": t("money.only", { name }), onclick: () => this.#change({ session }) }, icon("money")) : "");
    const row = ({ session, title, channel, calls, usd }) => {
      // Who may not read messages gets no titles.
      const name = title === "" ? t("money.deleted") : (title ?? shortId(session));
      return h("li", {}, h("span", { class: "channel", title: channel }, shortChannel(channel)), h("span", { class: "grow" }, title && this.#context.has("conversations") ? h("a", { href: addressOf("conversations", [session]) }, name) : name, h("br"), h("span", { class: "muted" }, callsOf(calls))), only(session, name), h("b", { class: "num" }, money(usd)));
    };
    return h("section", { class: "card", "aria-labelledby": "money-top" }, h("header", {}, h("h2", { id: "money-top" }, t("money.dearest"))), top.length ? h("ul", { class: "rows" }, ...top.map(row)) : emptyState({ icon: "talks", title: t("money.no_talks"), text: t("money.none_text") }));
  }
}

/** Return the groups of the chart, from the bottom to the top, and their places by key. */
function grouped(splits, nameOf) {
  const shown = splits.length <= COLOURS.length + 1 ? splits : splits.slice(0, COLOURS.length);
  const groups = shown.map(({ key }, index) => ({ name: nameOf(key), colour: COLOURS[index] ?? OTHERS }));
  if (shown.length < splits.length) groups.push({ name: t("money.others"), colour: OTHERS });
  return [groups, new Map(shown.map(({ key }, index) => [key, index]))];
}

function colourOf(places, key) {
  return COLOURS[places.get(key)] ?? OTHERS;
}

function change({ usd, previous_usd: before, unpriced: none, calls }) {
  if (none === calls && calls > 0) return h("span", { class: "warn" }, t("money.no_price"));
  if (!Number(before)) return h("span", { class: "muted" }, t("money.new"));
  const share = Number(usd) / Number(before) - 1;
  return h("span", { class: share > 0.05 ? "warn" : share < -0.05 ? "good" : "muted" }, `${share < 0 ? "−" : "+"} ${percent(Math.abs(share))}`);
}

/** Return the figures of the chart as a table, closed at first. */
function figures(days, groups) {
  const head = [t("money.day"), ...groups.map(({ name }) => name), t("money.total")];
  const rows = days.map(({ key, parts, usd }) => h("tr", {}, h("th", { scope: "row" }, h("time", { datetime: key }, dayName(key))), ...[...parts, usd].map((cell) => h("td", { class: "right" }, money(cell)))));
  return h("details", { class: "figures" }, h("summary", {}, t("money.figures")), h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": t("money.figures") }, h("table", {}, h("caption", { class: "offscreen" }, t("money.by_day")), h("thead", {}, h("tr", {}, ...head.map((name, index) => h("th", { scope: "col", class: index > 0 && "right" }, name)))), h("tbody", {}, ...rows))));
}

/** Name what has no price, since its cost is not in any sum. */
function unpriced(rows) {
  if (rows.length === 0) return [];
  const items = rows.map(({ key, unpriced: calls }) => h("li", {}, h("code", { class: "grow" }, key), h("span", { class: "muted num" }, callsOf(calls))));
  return [h("section", { class: "card", "aria-labelledby": "money-unpriced" }, h("header", {}, h("h2", { id: "money-unpriced" }, t("money.not_counted"))), h("ul", { class: "rows" }, ...items), h("p", { class: "note muted" }, t("money.not_counted_text")))];
}

function callsOf(count) {
  return t("money.count", { count: counted(count) });
}

/** Return a row of buttons of which one is pressed. */
function segments(label, names, choose) {
  return h("div", { class: "seg", role: "group", "aria-label": label }, ...names.map(([name, text]) => h("button", { type: "button", "data-name": name, "aria-pressed": "false", onclick: () => choose(name) }, text)));
}

function press(group, name) {
  for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Money(host, context);
  view.update(params);
  return view;
}
