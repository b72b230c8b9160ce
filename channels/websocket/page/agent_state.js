/** The state of a coding agent in words, with a dot. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

const STATES = ["running", "blocked", "completed", "error"];

/** @param {string} state */
export function stateMark(state) {
  const known = STATES.includes(state) ? state : "error";
  return h("em", { class: "agent-state", "data-state": known }, t(`agents.${known}`));
}
