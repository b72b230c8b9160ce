/** Budgets with their marks, and a forecast in words. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { counted, moment, money } from "./amounts.js";

/** Holders that are named of a budget for each person, session or agent. */
const NAMED = 3;
/** From this part of its limit on a holder counts as near it. */
const NEAR = 0.8;

/** @typedef {{id: string, usd: string, expected_usd: string | null, reaches: "warn" | "ask" | "stop" | null, reaches_at: number | null}} Holder */

/** Return the card, none without budgets. @param {{name: string, scope: string, per: string, warn: string | null, ask: string | null, stop: string | null, holders: Holder[]}[]} budgets */
export function budgetsCard(budgets) {
  if (budgets.length === 0) return [h("section", { class: "card", "aria-labelledby": "money-budgets" }, h("header", {}, h("h2", { id: "money-budgets" }, t("money.budgets"))), h("p", { class: "note muted" }, t("money.no_budgets")))];
  return [h("section", { class: "card", "aria-labelledby": "money-budgets" }, h("header", {}, h("h2", { id: "money-budgets" }, t("money.budgets"))), h("ul", { class: "rows budgets" }, ...budgets.map(budget)))];
}

function budget({ scope, per, warn, ask, stop, holders }) {
  const limit = Number(stop ?? ask ?? warn);
  const first = holders[0] ?? { id: "", usd: "0", expected_usd: null, reaches: null, reaches_at: null };
  const near = holders.filter(({ usd }) => Number(usd) >= limit * NEAR);
  const used = Number(first.usd) / limit;
  const single = scope === "all" || holders.length === 1;
  const fill = h("i", { "data-level": used >= 1 ? "over" : warn !== null && Number(first.usd) >= Number(warn) ? "warned" : "fine" });
  fill.style.setProperty("width", `${Math.min(100, 100 * used)}%`);
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, fill);
  if (warn !== null && Number(warn) < limit) {
    const sign = h("s");
    sign.style.setProperty("left", `${(100 * Number(warn)) / limit}%`);
    bar.append(sign);
  }
  const amount = single ? t("money.of", { usd: money(first.usd), limit: money(limit) }) : t("money.near", { near: counted(near.length), count: counted(holders.length) });
  const names = single ? forecast(first, { warn, ask, stop }) : [...holders.slice(0, NAMED).map(({ id, usd }) => `${id} ${money(usd)}`), forecast(first, { warn, ask, stop })].filter(Boolean).join(" · ");
  return h("li", {}, h("div", { class: "budget-head" }, h("b", {}, single && first.id ? `${t(`money.by.${scope === "user" ? "person" : scope}`)} ${first.id}` : t(`money.scope.${scope}`)), h("span", { class: "muted" }, t(`money.per.${per}`)), h("span", { class: "num" }, amount)), bar, h("small", { class: "muted" }, names));
}

/** Say when the next limit is reached at the pace of the last days. */
function forecast({ usd, expected_usd: expected, reaches, reaches_at: at }, { warn, ask, stop }) {
  const over = ["stop", "ask", "warn"].find((name) => ({ warn, ask, stop })[name] !== null && Number(usd) >= Number({ warn, ask, stop }[name]));
  const now = over ? t(`money.over.${over}`) : "";
  if (reaches) return [now, t(`money.reaches.${reaches}`, { time: moment(at) })].filter(Boolean).join(" ");
  return [now, expected === null ? "" : t("money.expected", { usd: money(expected) })].filter(Boolean).join(" ");
}
