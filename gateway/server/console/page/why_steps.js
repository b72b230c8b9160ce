/** Every step of a message as a table with a waterfall, and where the time went. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { exact, lasted, money } from "./amounts.js";
import { channelName, word } from "./words.js";

/** Kinds of work by which time is summed and bars are drawn. */
const ORDER = ["wait", "work", "model", "tool", "failed", "sending"];
const WAITS = new Set(["waited", "question"]);
const ICONS = { received: "file", accepted: "file", merged: "fork", superseded: "edit", waited: "clock", hook: "plug", command: "terminal", model: "chip", fallback: "chip", tool: "tool", question: "hand", restart: "again", placement: "send", final: "check" };
/** Details that the row itself says already. */
const SAID = new Set(["nano_usd", "yours"]);
const MONO = new Set(["key", "trace", "session", "platform_id", "nonce", "id", "error", "code", "name"]);
/** Widths between marks of the axis, in ms; four fit. */
const STRIDES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];

/** @typedef {{kind: string, name: string, at: number, took: number, state: string, cost?: number | null, detail: Record<string, any>}} Step took is in microseconds */

/** Return which kind of work a step was. @param {Step} step */
function workOf({ kind, state }) {
  if (WAITS.has(kind)) return "wait";
  if (isFailed({ state })) return "failed";
  if (kind === "model") return "model";
  return kind === "tool" ? "tool" : kind === "placement" ? "sending" : "work";
}

const isFailed = ({ state }) => state === "failed" || state === "refused";
const ms = (step) => (step.took ?? 0) / 1_000;

/** Return how long a step took; a dash if that is not known. */
function tookOf(step) {
  return step.took ? (step.took < 500 ? "< 1 ms" : lasted(ms(step))) : "–";
}

/** Return the time from the first step to the end of the last, in ms. @param {Step[]} steps */
export function totalOf(steps) {
  return steps.length ? Math.max(...steps.map((step) => step.at + ms(step))) - steps[0].at : 0;
}

/** Return the bar that says where the time went; null if there is nothing to say. @param {Step[]} steps */
export function whereTimeWent(steps) {
  const sums = new Map(ORDER.map((kind) => [kind, 0]));
  for (const step of steps) sums.set(workOf(step), sums.get(workOf(step)) + ms(step));
  const shown = [...sums].filter(([kind, sum]) => sum >= 1 && (kind === "failed" || sum >= totalOf(steps) / 100));
  if (shown.length < 2) return null;
  const bar = h("div", { class: "went-bar", "aria-hidden": "true" });
  for (const [kind, sum] of shown) {
    const piece = h("i", { "data-work": kind });
    piece.style.flexGrow = String(sum);
    bar.append(piece);
  }
  const said = shown.map(([kind, sum]) => h("span", { class: kind === "failed" && "bad" }, `${t(`why.work.${kind}`)} ${lasted(sum)}`));
  return h("div", { class: "went" }, h("h2", {}, t("why.went", { total: lasted(totalOf(steps)) })), bar, h("p", { class: "num" }, ...said));
}

/** Return the card with the table. @param {Step[]} steps @param {string} cause key of the cause: provider, code, alias of the key */
export function stepsCard(steps, cause) {
  const start = steps[0]?.at ?? 0;
  const total = Math.max(1, totalOf(steps));
  const stride = STRIDES.find((one) => total / one <= 4) ?? total / 4;
  const span = Math.max(total, Math.ceil(total / stride) * stride);
  const spent = steps.reduce((sum, { cost }) => sum + (cost ?? 0), 0);
  const body = h("tbody");
  const [provider, code] = cause.split(":");
  const causes = steps.filter((step) => isFailed(step) && (step.detail.yours || (step.detail.provider === provider && step.detail.code === code)));
  const open = causes.length ? causes : steps.filter(isFailed).slice(-1);
  for (const [index, step] of steps.entries()) body.append(...rows(step, index, { start, span, stride, open: open.includes(step) }));
  const head = [t("why.step"), t("why.start"), axis(span, stride), t("why.took"), t("why.cost")];
  const legend = h("span", { class: "legend", "aria-hidden": "true" }, ...ORDER.filter((kind) => kind !== "model").map((kind) => h("span", {}, h("i", { "data-work": kind }), t(`why.legend.${kind}`))));
  return h(
    "section",
    { class: "card", "aria-labelledby": "why-steps" },
    h("header", {}, h("h2", { id: "why-steps" }, t("why.every_step")), h("span", { class: "muted num" }, [lasted(total), spent ? money(spent) : ""].filter(Boolean).join(" · ")), legend),
    h("table", { class: "steps" }, h("thead", {}, h("tr", {}, ...head.map((cell, index) => h("th", { scope: "col", class: ["", "right", "track-head", "right", "right"][index], "aria-hidden": index === 2 && "true" }, cell)))), body),
  );
}

/** Return the texts of all steps, one line each. @param {Step[]} steps */
export function stepLines(steps) {
  const start = steps[0]?.at ?? 0;
  return steps.map((step) => `${lasted(step.at - start)}\t${stepName(step)}\t${lasted(ms(step))}${step.cost ? `\t${money(step.cost)}` : ""}${step.detail.error ? `\t${step.detail.error}` : ""}`);
}

/** Return the words of a step. @param {Step} step */
export function stepName({ kind, name, state, detail }) {
  const tail = {
    hook: () => word(`why.verdict.${detail.verdict ?? "pass"}`, detail.verdict),
    model: () => (isFailed({ state }) ? (detail.code ? word(`why.code.${detail.code}`, detail.code) : t("why.state.failed")) : ""),
    fallback: () => (detail.asked === false ? t("why.not_asked") : ""),
    tool: () => (detail.refused_by ? `${t("why.fact.refused_by")} ${detail.refused_by}` : String(detail.allowed_by ?? "")),
    waited: () => word(`why.for.${detail.for}`, detail.for ?? ""),
    placement: () => (detail.attempt > 1 ? t("why.attempt", { count: detail.attempt }) : ""),
    final: () => word(`why.outcome.${detail.outcome}`, detail.outcome ?? ""),
    question: () => String(detail.answer ?? ""),
  }[kind]?.();
  return word(`why.step.${kind}`, kind) + (name && kind !== "waited" && kind !== "final" ? ` ${kind === "received" || kind === "placement" ? channelName(name) : name}` : "") + (tail ? `${kind === "waited" ? " " : " · "}${tail}` : "");
}

/** Return the row of a step and the row with its details, which is open for the cause of a failure. */
function rows(step, index, { start, span, stride, open: opened }) {
  const facts = Object.entries(step.detail ?? {}).filter(([name, value]) => !SAID.has(name) && value !== "" && value !== null && !(name === "attempt" && value === 1) && !step.name.split("/").includes(value));
  const name = h("span", { class: "clip", title: stepName(step) }, stepName(step));
  const opens = facts.length > 0;
  const what = opens
    ? h("button", { type: "button", class: "what", "aria-expanded": "false", "aria-controls": `step-${index}` }, icon(ICONS[step.kind] ?? "file"), name, icon("chevron"))
    : h("span", { class: "what", tabindex: "-1" }, icon(ICONS[step.kind] ?? "file"), name);
  const bar = h("i", { "data-work": workOf(step) });
  bar.style.setProperty("left", `${(100 * (step.at - start)) / span}%`);
  bar.style.setProperty("width", `max(3px, ${(100 * ms(step)) / span}%)`);
  const track = h("div", { class: "track", "aria-hidden": "true" }, bar);
  track.style.setProperty("--stride", `${(100 * stride) / span}%`);
  const cell = (text, name) => h("td", { class: `right num ${name}` }, text);
  const row = h("tr", { "data-state": step.state }, h("th", { scope: "row" }, what), cell(lasted(step.at - start), "start"), h("td", { class: "track-cell", "aria-hidden": "true" }, track), cell(step.state === "running" ? t("why.still") : tookOf(step), ""), cell(step.cost ? money(step.cost) : "", "cost"));
  if (!opens) return [row];
  const open = h("tr", { class: "open", id: `step-${index}`, "data-state": step.state, hidden: true }, h("td", { colspan: 5 }, factsOf(facts)));
  const toggle = (yes) => {
    what.setAttribute("aria-expanded", String(yes));
    open.hidden = !yes;
    row.classList.toggle("is-open", yes);
  };
  what.addEventListener("click", () => toggle(open.hidden));
  if (opened) toggle(true);
  return [row, open];
}

/** Return names and values as a description list. @param {[string, any][]} facts */
function factsOf(facts) {
  return h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, word(`why.fact.${name}`, name.replaceAll("_", " "))), h("dd", {}, MONO.has(name) ? h("code", {}, shown(name, value)) : shown(name, value))]));
}

function shown(name, value) {
  if (typeof value === "boolean") return t(value ? "why.yes" : "why.no");
  if (name === "until") return exact(value);
  return name.endsWith("_ms") ? lasted(value) : String(value);
}

function axis(span, stride) {
  const labels = h("div", { class: "axis" });
  const unit = span >= 6e4 ? ["min", 6e4] : span >= 1e3 ? ["s", 1e3] : ["ms", 1];
  for (let at = 0; at <= span + stride / 1e3; at += stride) {
    const last = at + stride > span;
    // The name of the last mark is right-aligned, and would cover a near one before it.
    if (!last && at > 0 && at + 2 * stride > span && stride < span * 0.36) continue;
    const label = h("span", { class: last && "last" }, `${Number((at / unit[1]).toFixed(2))}${last ? ` ${unit[0]}` : ""}`);
    label.style.setProperty("left", `${(100 * at) / span}%`);
    labels.append(label);
  }
  return labels;
}
