/** Screen Dead letters: messages that were not answered after all attempts, by cause, to answer again or to drop. */
import { fullTime } from "/shared/dates.js";
import { fill, h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { language, t } from "/shared/language.js";
import { emptyState, failedState, nothingFound, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { counted, since } from "./amounts.js";
import { read } from "./api.js";
import { addressOf } from "./router.js";
import { planLetters } from "./why_replay.js";
import { channelName, shortId } from "./words.js";

const PAGE = 500;
const NEAR_END_PX = 1_200;

class DeadLetters {
  #context;
  #asked = new AbortController();
  /** @type {string | null} */ #cause = null;
  #causes = [];
  #letters = [];
  /** @type {string | null} */ #next = null;
  #loading = false;

  constructor(host, context) {
    this.#context = context;
    host.classList.add("dead");
    this.count = h("span", { class: "muted", role: "status" });
    this.acts = h("span", { class: "acts end" });
    this.chips = h("p", { class: "chips" });
    this.groups = h("div", { class: "card causes" });
    this.card = h("div", { class: "card letters" });
    this.causes = new Table({ label: t("dead.causes"), keyOf: ({ key }) => key, address: ({ key }) => addressOf("dead", [], { cause: key }), columns: this.#causeColumns() });
    this.table = new Table({ label: t("dead.list"), keyOf: ({ id }) => id, address: ({ id }) => addressOf("why", [id]), columns: this.#columns() });
    this.table.element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("dead.title")), this.count, this.acts), this.groups, this.chips, this.card);
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
    });
  }

  dispose() {
    this.#asked.abort();
  }

  /** @param {import("./router.js").Params} params */
  update({ query }) {
    const cause = query.get("cause");
    if (cause === this.#cause && this.card.hasChildNodes()) return;
    this.#cause = cause;
    this.#load();
  }

  async #load() {
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#loading = false;
    const { signal } = this.#asked;
    const loaded = this.card.hasChildNodes() ? () => {} : showLoading(this.card);
    try {
      const [{ causes }, page] = await Promise.all([read("/api/dead/causes", { lang: language }, { signal }), this.#read("", signal)]);
      this.#causes = causes;
      this.#letters = page.dead;
      this.#next = page.next;
      this.#show();
    } catch (error) {
      if (error.name !== "AbortError") this.card.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #read(cursor, signal) {
    return read("/api/dead", { limit: PAGE, cause: this.#cause, cursor }, { signal });
  }

  async #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.table.element;
    if (this.#next === null || this.#loading || scrollTop + clientHeight < scrollHeight - NEAR_END_PX) return;
    this.#loading = true;
    const { signal } = this.#asked;
    try {
      const page = await this.#read(this.#next, signal);
      this.#letters.push(...page.dead);
      this.#next = page.next;
      this.table.setRows(this.#letters, this.#total);
    } catch (error) {
      if (error.name !== "AbortError") this.#context.notify(error.message);
    } finally {
      if (!signal.aborted) this.#loading = false;
    }
  }

  /** Letters that the list has, also those that are not read yet. */
  get #total() {
    const shown = this.#causes.filter(({ key }) => this.#cause === null || key === this.#cause);
    return Math.max(this.#letters.length, sum(shown));
  }

  #show() {
    const all = sum(this.#causes);
    const chosen = this.#causes.find(({ key }) => key === this.#cause);
    this.#context.setCount("dead", all);
    this.count.textContent = all === 0 ? "" : `${t("dead.count", { count: counted(all) })}, ${t("dead.causes_count", { count: this.#causes.length })}`;
    this.acts.replaceChildren(...(this.#context.isAdmin && all > 0 ? this.#buttons({ all: true }, "dead.replay_all", "dead.drop_all", this.#causes.some(canReplay)) : []));
    this.causes.setRows(this.#causes);
    this.groups.hidden = all === 0;
    fill(this.groups, this.causes.element);
    this.chips.replaceChildren(...(this.#cause === null ? [] : [h("button", { type: "button", class: "chip", onclick: () => this.#context.open("dead") }, t("dead.only", { cause: chosen?.text ?? this.#cause }), icon("cross"), h("span", { class: "offscreen" }, t("dead.all")))]));
    this.table.setRows(this.#letters, this.#total);
    fill(this.card, this.#letters.length > 0 ? this.table.element : all === 0 ? emptyState({ icon: "inbox", title: t("dead.empty"), text: t("dead.empty_text") }) : nothingFound({ query: this.#cause, drop: () => this.#context.open("dead") }));
  }

  #causeColumns() {
    const dated = (at) => h("time", { datetime: new Date(at).toISOString(), title: fullTime(at) }, since(at));
    return [
      { label: t("dead.cause"), show: ({ text }) => h("span", { class: "clip" }, text), class: "wide" },
      { label: t("dead.letters"), show: ({ count }) => counted(count), right: true },
      { label: t("dead.since"), show: ({ since: at }) => dated(at), right: true },
      { label: t("dead.newest"), show: ({ last }) => dated(last), right: true },
      ...this.#actions((row) => this.#buttons({ cause: row.key }, "dead.replay", "dead.drop", canReplay(row))),
    ];
  }

  #columns() {
    const time = ({ at }) => h("time", { datetime: new Date(at).toISOString(), title: fullTime(at) }, since(at));
    const text = ({ id, kind, text: said }) => h("span", { class: "clip" }, kind === "event" ? t("dead.event") : said || shortId(id));
    return [
      { label: t("dead.message"), show: text, class: "wide" },
      { label: t("dead.reason"), show: ({ reason }) => h("span", { class: "clip", title: reason }, reason), class: "wide" },
      { label: t("dead.channel"), show: ({ channel }) => channelName(channel) },
      { label: t("dead.attempts"), show: ({ attempts }) => String(attempts ?? 0), right: true },
      { label: t("dead.time"), show: time, right: true },
      ...this.#actions((row) => this.#buttons({ ids: [row.id] }, "dead.replay", "dead.drop", row.kind !== "event")),
    ];
  }

  /** Return the column with buttons; a viewer has none. */
  #actions(show) {
    return this.#context.isAdmin ? [{ label: t("dead.actions"), unnamed: true, show: (row) => h("span", { class: "acts" }, ...show(row)), right: true }] : [];
  }

  /** Return the buttons for some letters; those of a row are pictures with names. */
  #buttons(choice, again, drop, isAnswerable) {
    const button = (action, picture, label) => h("button", { type: "button", class: "small", "aria-label": choice.all ? undefined : label, title: choice.all ? undefined : label, onclick: () => planLetters(choice, action, () => this.#load()) }, icon(picture), choice.all ? label : "");
    return [isAnswerable && button("replay", "again", t(again)), button("drop", "trash", t(drop))].filter(Boolean);
  }
}

function canReplay({ kind }) {
  return kind === "message";
}

function sum(causes) {
  return causes.reduce((total, { count }) => total + count, 0);
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new DeadLetters(host, context);
  view.update(params);
  return view;
}
