/** Stacked bars of the cost of each day, as SVG. It is a picture for screen readers; a table has its figures. */
import { h } from "/shared/dom.js";
import { locale, t } from "/shared/language.js";
import { money } from "./amounts.js";
import { svg } from "./marks.js";

const DAY = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", timeZone: "UTC" });
const WEEKDAY = new Intl.DateTimeFormat(locale, { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
/** About so many days have a name below the chart. */
const NAMES = 6;
const LEAST = 0.4;

/**
 * @param {object} chart
 * @param {string} chart.label
 * @param {{key: string, usd: number, parts: number[]}[]} chart.days `parts` in the order of `groups`; the days are UTC
 * @param {{name: string, colour: number}[]} chart.groups from the bottom to the top
 * @param {number | null} chart.cap the budget of a day @param {number | null} chart.expected the cost of the last day at midnight
 */
export function dayChart({ label, days, groups, cap, expected }) {
  const highest = Math.max(...days.map(({ usd }) => usd), expected ?? 0);
  // A budget far above all days would press the bars flat; then a word replaces its line.
  const line = cap !== null && cap <= highest * 2.5 ? cap : null;
  const [top, stride] = scale(Math.max(highest, line ?? 0));
  const slot = 100 / days.length;
  const plot = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (let at = 0; at <= top * 1.001; at += stride) plot.append(svg("line", { class: "grid", x1: 0, x2: 100, y1: 100 - (100 * at) / top, y2: 100 - (100 * at) / top }));
  const shade = svg("rect", { class: "shade", y: 0, width: slot, height: 100, x: 0, visibility: "hidden" });
  plot.append(shade);
  days.forEach(({ parts, usd }, index) => {
    const x = index * slot + slot * 0.14;
    let y = 100;
    parts.forEach((part, group) => {
      if (part <= 0) return;
      const height = Math.max(LEAST, (100 * part) / top);
      y -= height;
      plot.append(svg("rect", { "data-colour": groups[group].colour, x, y, width: slot * 0.72, height: Math.max(0.2, height - 0.35) }));
    });
    if (index === days.length - 1 && expected !== null && expected > usd) plot.append(svg("rect", { class: "expected", x, y: 100 - (100 * expected) / top, width: slot * 0.72, height: (100 * (expected - usd)) / top }));
  });
  if (line !== null) plot.append(svg("line", { class: "cap", x1: 0, x2: 100, y1: 100 - (100 * line) / top, y2: 100 - (100 * line) / top }));
  const tip = h("div", { class: "tip num", hidden: true, "aria-hidden": "true" });
  const box = h("div", { class: "plot" }, plot, tip);
  box.addEventListener("pointermove", (event) => {
    const { left, width } = box.getBoundingClientRect();
    const at = Math.max(0, Math.min(days.length - 1, Math.floor(((event.clientX - left) / width) * days.length)));
    shade.setAttribute("x", String(at * slot));
    shade.setAttribute("visibility", "visible");
    showTip(tip, days[at], groups, (at + 0.5) / days.length);
  });
  box.addEventListener("pointerleave", () => (shade.setAttribute("visibility", "hidden"), (tip.hidden = true)));
  return h("figure", { class: "chart" }, box, heights(top, stride), names(days), legend(groups, expected !== null, line !== null));
}

/** Return the day of a key such as 2026-11-27. */
export function dayName(key) {
  return WEEKDAY.format(Date.parse(key));
}

/** Return a round height above the highest bar, and the distance of the lines: 3 to 5 of them. */
function scale(highest) {
  if (highest <= 0) return [1, 0.5];
  const power = 10 ** Math.floor(Math.log10(highest));
  const stride = [0.2, 0.25, 0.5, 1, 2, 2.5, 5].map((one) => one * power).find((one) => highest / one <= 5);
  return [Math.ceil((highest * 1.0001) / stride) * stride, stride];
}

function showTip(tip, day, groups, place) {
  const rows = day.parts.map((usd, index) => [usd, groups[index]]).filter(([usd]) => usd > 0).reverse();
  tip.replaceChildren(h("b", {}, h("span", {}, dayName(day.key)), h("span", {}, money(day.usd))), ...rows.map(([usd, { name, colour }]) => h("div", {}, h("i", { "data-colour": colour }), h("span", { class: "clip" }, name), h("span", {}, money(usd)))));
  tip.hidden = false;
  const right = place > 0.5;
  tip.style.setProperty("left", right ? "auto" : `${100 * place + 2}%`);
  tip.style.setProperty("right", right ? `${100 * (1 - place) + 2}%` : "auto");
}

function heights(top, stride) {
  const list = h("div", { class: "heights", "aria-hidden": "true" });
  const digits = stride >= 1 || stride === 0 ? 0 : Math.min(4, Math.ceil(-Math.log10(stride)) + (String(stride).includes("25") ? 1 : 0));
  for (let at = 0; at <= top * 1.001; at += stride) {
    const label = h("span", {}, at === 0 ? "0" : `$${at.toLocaleString(locale, { minimumFractionDigits: digits, maximumFractionDigits: digits })}`);
    label.style.setProperty("bottom", `${(100 * at) / top}%`);
    list.append(label);
  }
  return list;
}

function names(days) {
  const list = h("div", { class: "days", "aria-hidden": "true" });
  const step = Math.max(1, Math.ceil(days.length / NAMES));
  days.forEach(({ key }, index) => {
    const last = index === days.length - 1;
    if (!last && (index % step || days.length - 1 - index < step * 0.6)) return;
    const label = h("span", { class: last && days.length > 1 && "last" }, last ? t("money.today") : DAY.format(Date.parse(key)));
    label.style.setProperty("left", `${(100 * (index + 0.5)) / days.length}%`);
    list.append(label);
  });
  return list;
}

function legend(groups, expected, cap) {
  const entry = (name, attributes) => h("span", {}, h("i", attributes), name);
  return h("figcaption", { class: "legend" }, ...groups.map(({ name, colour }) => entry(name, { "data-colour": colour })), expected && entry(t("money.at_pace"), { class: "expected" }), cap && entry(t("money.budget_line"), { class: "cap" }));
}
