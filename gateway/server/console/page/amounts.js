/** Formatting of money, counts, shares and times in the tables of the console. */
import { cost } from "/shared/figures.js";
import { locale, t } from "/shared/language.js";
import { gatewayNow } from "./api.js";

const number = (options) => new Intl.NumberFormat(locale, options);
const COUNT = number({});
const TENTHS = number({ minimumFractionDigits: 1, maximumFractionDigits: 1 });
const HUNDREDTHS = number({ minimumFractionDigits: 2, maximumFractionDigits: 2 });
const CLOCK = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const THIS_YEAR = new Intl.DateTimeFormat(locale, DAY);
const OTHER_YEAR = new Intl.DateTimeFormat(locale, { ...DAY, year: "numeric" });
const MOMENT = new Intl.DateTimeFormat(locale, { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Return dollars with two digits from $1, else with four. @type {(usd: number | string) => string} */
export const money = cost;

/** @param {number} count */
export function counted(count) {
  return COUNT.format(count);
}

/** Return a large count in millions, such as "118.2 M". @param {number} count */
export function millions(count) {
  return count < 100_000 ? COUNT.format(count) : `${TENTHS.format(count / 1_000_000)} M`;
}

/** @param {number} share from 0 to 1 */
export function percent(share) {
  return `${COUNT.format(Math.round(share * 100))} %`;
}

/** Return a duration with its unit. @param {number} ms */
export function lasted(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${HUNDREDTHS.format(ms / 1_000)} s`;
  if (ms < 59_950) return `${TENTHS.format(ms / 1_000)} s`;
  const seconds = Math.round(ms / 1_000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return minutes < 2_880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1_440)} d ${Math.floor((minutes % 1_440) / 60)} h`;
}

/** Return the time of day with seconds. @param {number} ms since the epoch */
export function clock(ms) {
  return CLOCK.format(ms);
}

/** Return the time of day with milliseconds. @param {number} ms since the epoch */
export function exact(ms) {
  return `${CLOCK.format(ms)}.${String(ms % 1_000).padStart(3, "0")}`;
}

/** Return the day and the time of day. @param {number} ms since the epoch */
export function moment(ms) {
  return MOMENT.format(ms);
}

/** Return the time of today with seconds; of another day the minute, and its year if that is another one. @param {number} ms since the epoch */
export function since(ms) {
  const [at, now] = [new Date(ms), new Date()];
  if (at.toDateString() === now.toDateString()) return clock(ms);
  return (at.getFullYear() === now.getFullYear() ? THIS_YEAR : OTHER_YEAR).format(ms);
}

/** Return how long ago a time was, in one unit. @param {number} ms @param {number} [now] */
export function ago(ms, now = gatewayNow()) {
  const seconds = Math.max(0, Math.round((now - ms) / 1_000));
  if (seconds < 60) return t("ago.seconds", { count: seconds });
  if (seconds < 3_600) return t("ago.minutes", { count: Math.floor(seconds / 60) });
  if (seconds < 172_800) return t("ago.hours", { count: Math.floor(seconds / 3_600) });
  return t("ago.days", { count: Math.floor(seconds / 86_400) });
}
