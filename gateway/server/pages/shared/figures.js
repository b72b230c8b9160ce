/** Formatting of durations, costs, token counts and sizes. */
import { locale, t } from "./language.js";

const digits = (count) => new Intl.NumberFormat(locale, { minimumFractionDigits: count, maximumFractionDigits: count });
const COUNT = digits(0);
const TENTHS = digits(1);
const CENTS = digits(2);
const SMALL = digits(4);
const UP_TO_TENTHS = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${TENTHS.format(ms / 1_000)} s`;
  const seconds = Math.round(ms / 1_000);
  return `${Math.floor(seconds / 60)} min${seconds % 60 ? ` ${seconds % 60} s` : ""}`;
}

/** Return dollars with two digits from $1, else with four. @param {number | string} usd */
export function cost(usd) {
  const value = Number(usd);
  if (value === 0) return "$0";
  return `${value < 0 ? "−" : ""}$${(Math.abs(value) < 1 ? SMALL : CENTS).format(Math.abs(value))}`;
}

/** @param {number} count */
export function tokens(count) {
  const text = count < 10_000 ? COUNT.format(count) : `${TENTHS.format(count / 1_000)}k`;
  return `${text} ${t("figures.tokens", { count })}`;
}

/** Return usage and cost of a message or session as one line. @param {import("./state.js").Usage} usage */
export function usageLine({ input_tokens, output_tokens, cost: usd }) {
  const total = (input_tokens ?? 0) + (output_tokens ?? 0);
  return [total > 0 ? tokens(total) : "", usd === undefined || usd === null ? "" : cost(usd)].filter(Boolean).join(" · ");
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1_000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1_000)} kB` : `${UP_TO_TENTHS.format(bytes / 1_000_000)} MB`;
}

/** Return seconds as minutes and seconds: 1:05. */
export function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
