/** Dead letters: messages that were not answered after all attempts, to answer again or to drop. */
import { announce } from "/shared/announcer.js";
import { confirmed } from "/shared/confirm_dialog.js";
import { fullTime, shortTime } from "/shared/dates.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { read, send } from "./api.js";
import { addressOf } from "./router.js";

/** @type {import("./screens.js").Screen} */
export const screen = {
  name: "dead",
  title: () => t("dead.title"),
  icon: "inbox",
  group: "act",
  roles: ["admin", "viewer"],
  render(host, _params, context) {
    return new DeadLetters(host, context);
  },
};

class DeadLetters {
  constructor(host, context) {
    this.context = context;
    this.aborted = new AbortController();
    this.count = h("span", { class: "muted" });
    this.card = h("section", { class: "card" });
    this.table = new Table({ label: t("dead.title"), keyOf: (row) => row.id, address: (row) => addressOf("why", [row.id]), columns: this.#columns() });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("dead.title")), this.count), this.card);
    context.keys({
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
    });
    this.#load();
  }

  dispose() {
    this.aborted.abort();
  }

  async #load() {
    const loaded = showLoading(this.card);
    try {
      const { dead } = await read("/api/dead", {}, { signal: this.aborted.signal });
      this.#show(dead);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.card.replaceChildren(failedState({ text: error.message, again: () => this.#load() }));
    } finally {
      loaded();
    }
  }

  #show(dead) {
    this.context.setCount("dead", dead.length);
    this.count.textContent = dead.length === 0 ? "" : t(dead.length === 1 ? "dead.one" : "dead.count", { count: dead.length });
    this.table.setRows(dead);
    const empty = () => emptyState({ icon: "inbox", title: t("dead.empty"), text: t("dead.empty_text") });
    this.card.replaceChildren(dead.length === 0 ? empty() : this.table.element);
  }

  #columns() {
    const time = ({ at }) => h("time", { datetime: new Date(at).toISOString(), title: fullTime(at) }, shortTime(at));
    const text = ({ kind, text: said }) => h("span", { class: "clip" }, kind === "event" ? t("dead.event") : said);
    return [
      { label: t("dead.message"), show: text, sort: (row) => row.text ?? "", class: "wide" },
      { label: t("dead.reason"), show: (row) => row.reason, sort: (row) => row.reason },
      { label: t("dead.channel"), show: (row) => row.channel, sort: (row) => row.channel },
      { label: t("dead.attempts"), show: (row) => String(row.attempts ?? 0), sort: (row) => row.attempts ?? 0, right: true },
      { label: t("dead.time"), show: time, sort: (row) => row.at, right: true },
      ...(this.context.isAdmin ? [{ label: t("dead.actions"), unnamed: true, show: (row) => this.#actions(row), right: true }] : []),
    ];
  }

  #actions(row) {
    const again = h("button", { type: "button", class: "small", onclick: () => this.#act(row, "replay") }, icon("again"), t("dead.replay"));
    const drop = h("button", { type: "button", class: "small", onclick: () => this.#act(row, "drop") }, icon("trash"), t("dead.drop"));
    return h("span", { class: "acts" }, row.kind !== "event" && again, drop);
  }

  async #act(row, what) {
    if (what === "drop" && !(await confirmed(t("dead.drop_title"), t("dead.drop_text"), t("dead.drop")))) return;
    const one = `/api/dead/${encodeURIComponent(row.id)}`;
    try {
      await (what === "drop" ? send("DELETE", one) : send("POST", `${one}/replay`));
      announce([h("p", {}, t(what === "drop" ? "dead.dropped" : "dead.replayed"))]);
    } catch (error) {
      this.context.notify(t("api.failed", { reason: error.message }));
    }
    await this.#load();
  }
}
