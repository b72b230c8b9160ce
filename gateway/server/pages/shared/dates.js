/** Dates and times in the viewer's zone and language, and the date groups of the list of conversations. */
import { choice, choose } from "./choices.js";
import { locale, t } from "./language.js";

const DAY_MS = 86_400_000;
const KEY = "trunkline.clock";
/** Cycles of hours by choice; with none the language decides. */
const CYCLES = { 12: "h12", 24: "h23" };
const format = (options) => new Intl.DateTimeFormat(locale, { ...options, hourCycle: CYCLES[chosenClock()] });
const CLOCK = format({ hour: "2-digit", minute: "2-digit" });
const WEEKDAY = format({ weekday: "short" });
const DAY = format({ day: "numeric", month: "short" });
const MONTH = format({ month: "long" });
const YEAR_MONTH = format({ month: "long", year: "numeric" });
/** Made once: each frame of an answer asks for the day of every message. */
const DAY_NAME = format({ weekday: "long", day: "numeric", month: "long", year: "numeric" });
const FULL = format({ dateStyle: "long", timeStyle: "short" });

/** @returns {"" | "12" | "24"} the user's choice of hours, empty for those of the language */
export function chosenClock() {
  return choice(KEY);
}

/** Keep the choice of hours and load the page again; stored drafts survive that. @param {"" | "12" | "24"} hours */
export function chooseClock(hours) {
  choose(KEY, hours);
  location.reload();
}

/** @param {number} ms @returns {string} such as "09:22" */
export function clockTime(ms) {
  return CLOCK.format(ms);
}

/** @param {number} ms @returns {string} such as "23 November 2026 at 09:22" */
export function fullTime(ms) {
  return FULL.format(ms);
}

/** Return the time of today, the weekday of the last week, or the day. @param {number} ms @param {number} [now] */
export function shortTime(ms, now = Date.now()) {
  const days = daysAgo(ms, now);
  return days < 1 ? CLOCK.format(ms) : days < 8 ? WEEKDAY.format(ms) : DAY.format(ms);
}

/** Return the name of a day as a heading of the conversation. @param {number} ms @param {number} [now] */
export function dayName(ms, now = Date.now()) {
  const days = daysAgo(ms, now);
  if (days < 2) return t(days < 1 ? "list.today" : "list.yesterday");
  return DAY_NAME.format(ms);
}

/**
 * Group conversations: pinned, today, yesterday, the last 7 days, then months.
 * @param {readonly import("./state.js").SessionInfo[]} infos newest first
 * @returns {{label: string, infos: import("./state.js").SessionInfo[]}[]}
 */
export function grouped(infos, now = Date.now()) {
  const groups = new Map();
  for (const info of infos) if (info.pinned) add(groups, t("list.pinned"), info);
  for (const info of infos) if (!info.pinned) add(groups, groupName(info.updated_at, now), info);
  return [...groups.values()];
}

function add(groups, label, info) {
  if (!groups.has(label)) groups.set(label, { label, infos: [] });
  groups.get(label).infos.push(info);
}

/** Names of months that were asked for, by month: formatting 100,000 dates takes long. */
const months = new Map();

function groupName(ms, now) {
  const days = daysAgo(ms, now);
  if (days < 1) return t("list.today");
  if (days < 2) return t("list.yesterday");
  if (days < 8) return t("list.last_week");
  const date = new Date(ms);
  const key = date.getFullYear() * 12 + date.getMonth();
  if (!months.has(key)) months.set(key, (date.getFullYear() === new Date(now).getFullYear() ? MONTH : YEAR_MONTH).format(ms));
  return months.get(key);
}

/** Return how many midnights are between a time and now. */
function daysAgo(ms, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  return ms >= midnight ? 0 : Math.ceil((midnight - ms) / DAY_MS);
}
