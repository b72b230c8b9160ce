/** The four states of a list without rows: loading, empty, nothing found, failed. */
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

const QUIET_MS = 150;
const WIDTHS = ["72%", "56%", "80%", "42%", "64%", "50%"];

/** Show still bars in `host` unless the content arrives within 150 ms. @param {Element} host @returns {() => void} end it */
export function showLoading(host) {
  const bars = h("div", { class: "loading", role: "status" }, h("span", { class: "offscreen" }, t("states.loading")), ...WIDTHS.map(bar));
  const timer = setTimeout(() => host.append(bars), QUIET_MS);
  return () => (clearTimeout(timer), bars.remove());
}

function bar(width) {
  const line = h("div", { class: "loading-bar", "aria-hidden": "true" });
  line.style.width = width;
  return line;
}

/** Nothing is there yet. @param {{icon: string, title: string, text: string}} what a fact, and a sentence what would appear */
export function emptyState({ icon: name, title, text }) {
  return state(name, title, text);
}

/** A search found nothing. @param {{query: string, filters?: string, drop?: () => void}} what `drop` removes the filters */
export function nothingFound({ query, filters = "", drop }) {
  const button = drop && h("button", { type: "button", class: "small", onclick: drop }, t("states.drop_filters"));
  return state("search", t("states.nothing", { query }), filters && t("states.filters", { filters }), button);
}

/**
 * The data could not be read. Old rows stay on the page beside it.
 * @param {{title?: string, text: string, again?: () => Promise<void> | void}} what
 */
export function failedState({ title = t("states.failed"), text, again }) {
  const retry = async () => {
    const host = shown.parentElement;
    await again();
    // The button is replaced, also by the one of another failure; the keyboard goes on there.
    const place = host.isConnected ? host : document.querySelector("main");
    if (document.activeElement === document.body) place.querySelector("button, a, [tabindex]")?.focus();
  };
  const button = again && h("button", { type: "button", class: "small", onclick: retry }, icon("again"), t("states.again"));
  const shown = state("warning", title, text, button);
  shown.classList.add("failed");
  shown.setAttribute("role", "alert");
  return shown;
}

function state(name, title, text, ...more) {
  return h("div", { class: "state" }, icon(name), h("strong", {}, title), text && h("p", {}, text), ...more);
}
