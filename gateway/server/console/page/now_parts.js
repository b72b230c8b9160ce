/** Parts of the screen Now: what needs a person, figures with trends, channels, models, queues. */
import { h, reconcile } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { has, t } from "/shared/language.js";
import { ago, counted, lasted, money, percent, since } from "./amounts.js";
import { showCommand } from "./command_dialog.js";
import { svg } from "./marks.js";
import { isPaused } from "./provider_try.js";
import { addressOf } from "./router.js";
import { channelName, word } from "./words.js";

const FIGURES = ["running", "messages", "first_token", "answers", "errors", "cost"];
/** The screens that say more about a figure. */
const MORE = { messages: "conversations", answers: "conversations", errors: "dead", cost: "money" };
const DOTS = { question: "lamp", pairing: "lamp", budget: "warn", dead_letter: "bad", channel: "bad", provider: "bad" };
const ICONS = { open: "chevron", replace_key: "key", raise_budget: "money" };
const DOT_STATES = { ok: "ring", running: "full", waiting: "lamp", failed: "cross" };

/** @param {any[]} needs @param {import("./app.js").Context} context @returns {Node[]} rows */
export function needRows(needs, context) {
  return needs.map((one) => {
    const { kind, since: at } = one;
    const { text, cause, effect, action } = inLanguage(one);
    const more = [at ? t("now.since", { time: since(at) }) : "", text.includes(cause) ? "" : cause, effect].filter(Boolean).join(" · ");
    return h("li", {}, h("i", { class: `dot ${DOTS[kind] ?? "warn"}`, "aria-hidden": "true" }), h("div", { class: "grow" }, h("b", {}, text), " ", h("span", { class: "muted" }, more)), action && need(action, context));
  });
}

/** Return a need in the language of the page; what this page has no words for stays in those of the gateway. */
function inLanguage({ kind, name, count, text, cause, effect, action }) {
  const say = (part, own) => {
    const key = `now.need.${kind}.${part}`;
    return has(key) ? t(key, { name: kind === "channel" ? channelName(name) : name, count: counted(count) }) : own;
  };
  return { text: say("text", text), cause: say("cause", cause), effect: say("effect", effect), action: action && { ...action, label: say("act", action.label) } };
}

function need(action, context) {
  const { pathname, searchParams } = new URL(action.target, location.origin);
  const [, , screen, ...path] = pathname.split("/");
  const content = [icon((context.isAdmin && ICONS[action.kind]) || "chevron"), context.isAdmin ? action.label : t("now.see")];
  if (context.has(screen)) return h("a", { class: "button small", href: addressOf(screen, path.map(decodeURIComponent), Object.fromEntries(searchParams)) }, ...content);
  return context.isAdmin && h("button", { type: "button", class: "small", onclick: () => showCommand(action) }, ...content);
}

/** Return the figures of the last hour, each with its trend. */
export function figureCells(state, context) {
  const byName = new Map(state.figures.map((figure) => [figure.name, figure]));
  return FIGURES.filter((name) => byName.has(name)).map((name) => {
    const { value, points } = byName.get(name);
    const bad = name === "errors" && value > 0;
    const answers = byName.get("answers")?.value ?? 0;
    const extra = { errors: value > 0 && answers > 0 ? percent(value / (value + answers)) : "", cost: t("now.today", { usd: money(state.spend.today_usd) }) }[name] ?? "";
    const cell = [h("span", {}, t(`now.figure.${name}`)), h("b", { class: bad && "bad" }, figure(name, value), extra && " ", extra && h("small", {}, extra)), trend(points)];
    const screen = MORE[name];
    return screen && context.has(screen) ? h("a", { href: addressOf(screen), class: bad && "failing" }, ...cell) : h("div", { class: bad && "failing" }, ...cell);
  });
}

function figure(name, value) {
  if (value === null) return "–";
  if (name === "first_token") return lasted(value * 1_000);
  return name === "cost" ? money(value) : counted(value);
}

/** Return a line of 60 minutes; minutes without a value leave a gap. */
function trend(points) {
  const highest = Math.max(...points.map((point) => point ?? 0), 1e-9);
  const picture = svg("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  let run = [];
  const draw = () => {
    if (run.length > 1) picture.append(svg("polyline", { points: run.join(" ") }));
    run = [];
  };
  points.forEach((point, at) => (point === null ? draw() : run.push(`${((100 * at) / (points.length - 1)).toFixed(1)},${(20.5 - (18 * point) / highest).toFixed(1)}`)));
  draw();
  return picture;
}

/** Return the stations of a running turn as small dots; the words beside them say the same. */
export function smallLine(path) {
  const step = 17;
  const picture = svg("svg", { class: "small-line", width: path.length * step + 6, height: 16, viewBox: `0 0 ${path.length * step + 6} 16`, "aria-hidden": "true" });
  path.forEach(({ state }, at) => {
    const x = 8 + at * step;
    if (at + 1 < path.length) picture.append(svg("path", { class: "rail", d: `M${x + 4} 8h${step - 8}` }));
    const shape = DOT_STATES[state] ?? "ring";
    if (shape === "full" || shape === "lamp") picture.append(svg("circle", { class: `halo ${shape}`, cx: x, cy: 8, r: 7 }));
    picture.append(shape === "cross" ? svg("path", { class: "cross", d: `M${x - 3} 5l6 6M${x + 3} 5l-6 6` }) : svg("circle", { class: shape, cx: x, cy: 8, r: 3.2 }));
  });
  return picture;
}

/** @returns {Node[]} rows of the channels, with four hours in ticks of five minutes */
export function channelRows(channels) {
  return channels.map(({ id, ok, detail, since: at, ticks }) => {
    const bad = ticks.filter((tick) => tick === "brief" || tick === "down").length;
    const strip = h("div", { class: "ticks", role: "img", "aria-label": bad ? t("now.ticks_bad", { count: bad }) : t("now.ticks_fine") }, ...ticks.map((tick) => h("i", { "data-tick": tick })));
    return h("li", {}, h("div", { class: "who" }, h("i", { class: ok ? "dot" : "dot bad", "aria-hidden": "true" }), h("b", {}, channelName(id)), h("span", { class: "muted num end" }, `${t(ok ? "now.works" : "now.fails")} ${t("now.since", { time: since(at) })}`)), detail && h("div", { class: "muted" }, detail), strip);
  });
}

const CIRCUITS = { closed: "", failing: "warn", open: "bad", testing: "warn", rejected: "bad" };

/**
 * Draw the providers, with their circuit, the limit that is nearest, and a button while one is paused.
 * @param {Element} list @param {((provider: object) => void) | null} tryNow called by the button; null for a user who may only read
 */
export function drawProviders(list, providers, tryNow) {
  if (providers.length === 0) return list.replaceChildren(h("li", { class: "muted", "data-key": "" }, t("now.no_calls")));
  const create = () => h("li", {}, h("div", { class: "load" }), tryNow && h("button", { type: "button", class: "small" }, t("states.again")));
  // The button stays while its provider is there, and with it the focus.
  reconcile(list, providers, ({ id }) => id, create, (row, one) => {
    const button = row.querySelector("button");
    if (button !== null) {
      button.hidden = !isPaused(one);
      button.setAttribute("aria-label", t("now.try_one", { name: one.name }));
      button.onclick = () => tryNow(one);
    }
    const [used, most, said] = limitOf(one);
    const bar = h("i", { "data-level": used >= most ? "over" : used >= most * 0.8 ? "warned" : "fine" });
    bar.style.setProperty("width", `${most ? Math.min(100, (100 * used) / most) : 0}%`);
    row.firstElementChild.replaceChildren(h("span", {}, one.name, h("br"), h("small", { class: CIRCUITS[one.circuit] || (one.held_keys === one.keys ? "warn" : "muted"), title: one.text }, stateOf(one))), h("span", { class: "bar", "aria-hidden": "true" }, bar), h("small", { class: "num right muted" }, said));
  });
}

/** Return the state of a provider in words. */
export function stateOf({ circuit, held_keys: held, keys, until }) {
  if (circuit === "closed" && held === keys && until) return t("now.circuit.limited", { time: since(until) });
  return circuit === "open" && until ? t("now.circuit.open", { time: since(until) }) : t(`now.circuit.${circuit}`);
}

/** Return what is used of the nearest limit, the limit, and both in words. */
function limitOf({ requests, requests_per_minute: perMinute, tokens, tokens_per_minute: tokensPerMinute, running, concurrency, keys, refused_keys: refused }) {
  if (refused > 0 && refused >= keys) return [1, 1, t("now.keys", { good: 0, keys })];
  const limits = [
    [requests, perMinute, "now.per_minute"],
    [tokens, tokensPerMinute, "now.tokens_per_minute"],
    [running, concurrency, "now.at_once"],
  ].filter(([, most]) => most);
  if (limits.length === 0) return [0, 0, t("now.calls", { count: counted(running) })];
  const [used, most, words] = limits.reduce((near, one) => (one[0] / one[1] > near[0] / near[1] ? one : near));
  return [used, most, t(words, { used: counted(used), most: counted(most) })];
}

/** @returns {Node[]} names and values of a description list */
export function queueFacts({ conversations, longest, messages, most_messages: most, oldest_message: oldest, calls, sending, oldest_sending: oldestSending, dead_letters: dead, writer_age: writer }) {
  const aged = (count, seconds) => (count ? `${counted(count)}, ${t("now.oldest", { time: lasted(seconds * 1_000) })}` : counted(count));
  return [
    ["conversations", conversations ? t("now.at_most", { count: counted(conversations), most: counted(longest) }) : "0"],
    ["inbox", `${t("money.of", { usd: counted(messages), limit: counted(most) })}${messages ? `, ${t("now.oldest", { time: lasted(oldest * 1_000) })}` : ""}`],
    ["calls", counted(calls)],
    ["sending", aged(sending, oldestSending)],
    ["dead", counted(dead)],
    ["writer", writer ? lasted(writer * 1_000) : "–"],
  ].flatMap(([name, value]) => [h("dt", {}, t(`now.queue.${name}`)), h("dd", {}, value)]);
}

/** Return the sentence of a turn that ended; how long it took is not known of one that was too fast to be seen. */
export function endedSentence({ outcome, error, took }) {
  const answered = error === "" && outcome !== "cancelled";
  const said = took ? t(answered ? "now.answered" : "now.ended", { time: lasted(took) }) : t(answered ? "now.answered_fast" : "now.ended_fast");
  return error ? `${said}: ${word(`why.code.${error}`, error)}` : said;
}

/** Return how old the state is, for the time without a connection. */
export function ageOf(at) {
  return t("now.as_of", { time: since(at), ago: ago(at) });
}
