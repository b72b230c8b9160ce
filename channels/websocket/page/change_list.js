/**
 * `<tl-changes>`: the files that tools changed during a turn, folded: totals in the summary, then each file with its
 * diff. Fetched once the answer is complete.
 */
import { listChanges } from "./api.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { currentSession } from "./router.js";
import { diffLines } from "./tool_panel.js";

export class ChangeList extends HTMLElement {
  #shown = 0;

  /** @param {import("./message_state.js").Message} message */
  async render(message) {
    const count = message.parts.reduce((sum, part) => sum + (part?.changedFiles ?? 0), 0);
    if (message.status !== "done" || count === this.#shown) return;
    this.#shown = count;
    const found = await listChanges(currentSession(), message.id);
    // Another render may have asked again in the meantime.
    if (!found?.files || this.#shown !== count) return;
    const label = t("changes.files", { count: found.files });
    const summary = h("summary", {}, icon("chevron"), h("span", {}, label), figures(found));
    this.replaceChildren(h("details", { class: "folded changes" }, summary, h("div", {}, ...found.changes.map(fileView))));
  }
}

function fileView(file) {
  const { path, before, after, diff, note } = file;
  const state = before === null ? t("changes.new") : after === null ? t("changes.deleted") : "";
  const caption = h("summary", {}, h("span", { class: "tool-hint" }, path), state && h("span", {}, state), figures(file));
  const shown = diff ? diffLines(diff) : [note || t("changes.line_ends")];
  const lines = h("pre", { tabindex: "0", role: "group", "aria-label": t("changes.diff", { path }) }, ...shown);
  return h("details", { class: "tool" }, caption, lines, note && diff && h("p", {}, note));
}

function figures({ added, removed }) {
  return h("span", { class: "figures" }, `+${added} −${removed}`);
}

customElements.define("tl-changes", ChangeList);
