/** The verdict of a message in words, with the actions that fix its cause. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { firstSentence } from "./words.js";

/** Tones: bad and warn ask for an action, lamp for a person. */
const TONES = { failed: "bad", unsent: "bad", uncertain: "warn", stopped: "warn", refused: "warn", waiting: "calm", running: "calm", denied: "warn", answered: "good", merged: "calm", superseded: "calm", unknown: "calm" };
const SEALS = { bad: "cross", warn: "warning", lamp: "hand", calm: "clock", good: "check" };
const CODES = { unknown: "search", merged: "fork", superseded: "edit", running: "pulse", stopped: "stop", refused: "cross" };
const ICONS = { replace_key: "key", allow: "check", deny: "cross", pair: "person", replay: "play", raise_budget: "money", send_again: "send", stop: "stop", open: "chevron", message: "path", model: "chip", now: "play", wait: "clock", link: "talks" };

/**
 * @typedef {{kind: string, label: string, target?: string, command?: string, more?: string}} Action
 * @typedef {{code: string, text: string, more?: string, rule?: string, actions?: Action[]}} Verdict
 */

/** @param {Verdict} verdict @param {Action[]} actions @param {string} more what is added to the sentence @param {(action: Action) => void} act */
export function verdictCard(verdict, actions, more, act) {
  const tone = verdict.code === "waiting" && actions.some(({ kind }) => kind === "allow") ? "lamp" : (TONES[verdict.code] ?? "calm");
  const [sentence, after] = firstSentence(verdict.text);
  const rest = [after, verdict.more, more].filter(Boolean).join(" ");
  const buttons = actions.map((action, index) => {
    const button = h("button", { type: "button", class: index === 0 && "primary", "data-action": action.kind }, icon(ICONS[action.kind] ?? "chevron"), action.label);
    button.addEventListener("click", () => act(action));
    return button;
  });
  return h(
    "section",
    { class: "why-verdict", "data-tone": tone, "data-code": verdict.code, "aria-labelledby": "why-sentence" },
    h("span", { class: "seal" }, icon(tone === "lamp" ? "hand" : (CODES[verdict.code] ?? SEALS[tone]))),
    h("div", { class: "said" }, h("h1", { id: "why-sentence", tabindex: "-1" }, sentence), rest && h("p", {}, rest), verdict.rule && h("p", { class: "rule" }, `${t("why.rule")} `, h("code", {}, verdict.rule))),
    buttons.length > 0 && h("div", { class: "acts", role: "group", "aria-label": t("why.actions") }, ...buttons),
  );
}
