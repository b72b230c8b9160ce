/** The line: the stations of a message in time order, the break, and the fallback chain as sidings under it. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { exact, lasted } from "./amounts.js";
import { gatewayNow } from "./api.js";
import { mark } from "./marks.js";

/** Stations that may follow the one where a message stopped: they brought the notice, not an answer. */
const AFTER = new Set(["placement", "waited", "final"]);
/** A line that needs more pixels is drawn from top to bottom. */
const WIDEST = 980;
const SAID = new Set(["changed", "running", "waiting", "failed", "refused", "skipped", "unrecorded", "never"]);
/** Stations whose text is a word and a name. */
const NAMED = new Set(["model", "tool", "hook", "command"]);

/**
 * @typedef {{text: string, state: string, reason?: string, yours?: boolean}} Siding
 * @typedef {{kind: string, text: string, at: number, took: number, state: string, detail?: string, sidings?: Siding[]}} Station `took` is in microseconds
 */

/**
 * Return the line as an ordered list; its `data-room` is the width below the stations before the sidings.
 * @param {Station[]} stations @param {string} code of the verdict @param {boolean} person whether it waits for a person
 * @param {() => void} openSteps called for a station that stands for several
 */
export function lineOf(stations, code, person, openSteps) {
  const answered = code === "answered" || code === "denied";
  const shown = answered ? stations : withBreak(withPresent(stations, code, person));
  const stop = answered ? -1 : breakOf(shown);
  const items = shown.map((one, at) => {
    const next = shown[at + 1];
    const rail = !next ? "none" : at === stop || next.state === "never" ? "broken" : "whole";
    return one.kind === "folded" ? folded(one, openSteps) : station(one, rail, shown[0].at);
  });
  const list = h("ol", { class: "line" }, ...items);
  list.style.setProperty("--columns", shown.map(width).join(" "));
  list.dataset.room = roomBefore(shown);
  list.toggleAttribute("data-long", shown.reduce((sum, { sidings = [] }) => sum + (sidings.length ? 320 : 84), 0) > WIDEST);
  return list;
}

/** Return the place where the message stopped, -1 if it did not. The end itself only repeats that something failed. */
function breakOf(stations) {
  return stations.findLastIndex(({ kind, state }) => kind !== "final" && (state === "failed" || state === "refused"));
}

/** Return the stations with the present one, which is recorded only when it is over. */
function withPresent(stations, code, person) {
  const last = stations.at(-1);
  if (!last || (code !== "waiting" && code !== "running") || last.state === "waiting" || last.state === "running") return stations;
  const began = last.at + last.took / 1_000;
  return [...stations, { kind: person ? "question" : "present", text: t(person ? "why.present.person" : `why.present.${code}`), at: began, took: Math.max(1, gatewayNow() - began) * 1_000, state: code }];
}

/** Return the stations with what followed the break as its sidings, and the answer that was not reached. */
function withBreak(stations) {
  const stop = breakOf(stations);
  const last = stations.at(-1);
  const answer = { kind: "answer", text: t("why.answer"), at: 0, took: 0, state: "never" };
  if (stop < 0) return last && (last.state === "waiting" || last.state === "running") ? [...stations, answer] : stations;
  const rest = stations.slice(stop + 1);
  if (!rest.every(({ kind }) => AFTER.has(kind))) return stations;
  const broken = stations[stop];
  const sidings = rest.filter(({ kind }) => kind !== "final").map(({ text, state, detail = "", at }) => ({ text, state: state === "ok" ? "placed" : state, reason: [detail, exact(at)].filter(Boolean).join(" · ") }));
  return [...stations.slice(0, stop), { ...broken, sidings: [...(broken.sidings ?? []), ...sidings] }, answer];
}

/** Return the width of a column: a station with sidings needs room for their reasons. */
function width({ kind, sidings = [] }) {
  return kind === "folded" ? "76px" : sidings.length ? "minmax(320px, 3.5fr)" : "minmax(84px, 1fr)";
}

/** Return the part of the width that is left of the sidings, as a percentage; "" without room. */
function roomBefore(shown) {
  const at = shown.findIndex(({ sidings = [] }) => sidings.length > 2);
  return at < 3 ? "" : `${Math.round((100 * at) / (shown.length + 2.5)) - 3}%`;
}

function station(one, rail, start) {
  const { kind, state, detail = "", sidings = [], at, took } = one;
  const person = state === "waiting" && kind === "question";
  const shape = kind === "restart" && state !== "unrecorded" ? "restart" : person ? "person" : state;
  const first = at === start;
  const [title, more] = parted(one, sidings.length > 0);
  const figure = kind === "received" ? exact(at) : took ? lasted(took / 1_000) : state === "never" ? t("why.state.never") : first ? "" : `+ ${lasted(at - start)}`;
  const time = state === "never" ? h("small", {}, figure) : figure && h("small", {}, h("time", { datetime: new Date(at).toISOString(), title: exact(at) }, figure));
  const said = state !== "never" && SAID.has(state) && h("span", { class: "offscreen" }, `, ${t(`why.state.${state}`)}`);
  const rest = [more, detail].filter(Boolean).join(", ");
  return h("li", { class: "station", "data-state": shape, "data-rail": rail }, mark(shape), h("b", {}, title, said), time, rest && h("span", { class: "rest" }, rest), sidings.length > 0 && h("ol", { class: "sidings" }, ...sidings.map(siding)));
}

/**
 * Return the title of a station and the rest of its text: what follows a colon, a comma or the first word.
 * @param {Station} one @param {boolean} whole whether there is room for all
 */
function parted({ text, kind }, whole) {
  const cut = /: |, /.exec(text) ?? (NAMED.has(kind) || text.split(" ").length > 2 ? /(?<!^(?:Not|Nicht)) /.exec(text) : null);
  return whole || !cut ? [text, ""] : [text.slice(0, cut.index), text.slice(cut.index + cut[0].length)];
}

function siding({ text, state, reason = "", yours = false }) {
  const said = h("span", { class: "offscreen" }, SAID.has(state) ? `${t(`why.state.${state}`)}: ` : "");
  const reasons = yours ? [h("strong", {}, reason), h("em", {}, ` · ${t("why.yours")}`)] : [h("em", {}, reason)];
  return h("li", { "data-state": state, class: yours && "cause" }, mark(state), h("div", {}, said, text, h("br"), ...reasons));
}

function folded({ text }, open) {
  return h("li", { class: "fold", "data-rail": "whole" }, h("button", { type: "button", onclick: open }, text));
}
