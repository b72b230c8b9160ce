/**
 * `<tl-list>`: conversations in date groups. Only the visible rows are in the document, so that 100,000
 * conversations scroll like ten. Sends `more`, and for a row `rename` {id, title}, `pin` {id, pinned} and
 * `delete` {id}.
 */
import { confirmed } from "/shared/confirm_dialog.js";
import { renderRow } from "./conversation_row.js";
import { grouped } from "/shared/dates.js";
import { h, reconcile } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openExport, openShareDialog } from "./late.js";
import { openMenu } from "/shared/menu.js";
import { listed, titleOf } from "./state.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";

/** Heights of a row and a heading, in rem; `list.css` has the same. */
const ROW_REM = matchMedia("(pointer: coarse)").matches ? 2.75 : 2.2;
const HEAD_REM = 2.2;
/** Rows drawn beyond each edge of the view. */
const BEYOND = 12;

export class ConversationList extends HTMLElement {
  #canvas = h("div", { class: "canvas" });
  /** Shown where there are no rows: that they are loading, that there are none, or that they could not be read. */
  #note = h("div", {});
  #noted = "";
  #endLoading = () => {};
  #state = null;
  #source = null;
  /** @type {{label: string, infos: object[], top: number}[]} */
  #groups = [];
  #renaming = null;
  #drawing = false;

  connectedCallback() {
    if (this.firstChild) return;
    this.tabIndex = -1;
    this.style.setProperty("--row", `${ROW_REM}rem`);
    this.append(this.#canvas, this.#note);
    this.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    new ResizeObserver(() => this.#drawSoon()).observe(this);
    this.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** @param {import("./state.js").State} state */
  render(state) {
    const before = this.#state;
    this.#state = state;
    this.#showNote(state);
    if (before?.sessions !== state.sessions || before?.server !== state.server || before?.listing.scope !== state.listing.scope) this.#group();
    else if (before.threads === state.threads && before.current === state.current && before.listing === state.listing) return;
    this.#draw();
  }

  /** Rename the open conversation in place. */
  renameCurrent() {
    const info = this.#all().find(({ id }) => id === this.#state.current);
    if (info) this.#startRename(info);
  }

  #all() {
    return this.#groups.flatMap(({ infos }) => infos);
  }

  #showNote(state) {
    const { known, failed, scope } = state.listing;
    const noted = listed(state).length > 0 ? "" : failed ? "failed" : known ? `none-${scope}` : "loading";
    if (noted === this.#noted) return;
    this.#noted = noted;
    this.#endLoading();
    this.#note.replaceChildren();
    if (noted === "loading") this.#endLoading = showLoading(this.#note);
    else if (noted === "failed") this.#note.append(failedState({ text: t("list.failed"), again: () => this.#emit("reload") }));
    else if (noted) this.#note.append(emptyState({ icon: "talks", title: t("list.none"), text: t("list.none_text") }));
  }

  #group() {
    let top = 0;
    this.#groups = grouped(listed(this.#state)).map((group) => {
      const placed = { ...group, top };
      top += HEAD_REM + group.infos.length * ROW_REM;
      return placed;
    });
    this.#canvas.style.height = `${top}rem`;
    this.#source = top;
  }

  #drawSoon() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => ((this.#drawing = false), this.#state && this.#draw()));
  }

  #draw() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const from = this.scrollTop / rem - BEYOND * ROW_REM;
    const to = (this.scrollTop + this.clientHeight) / rem + BEYOND * ROW_REM;
    const hadFocus = this.#canvas.contains(document.activeElement);
    const visible = this.#groups.filter(({ top, infos }) => top < to && top + HEAD_REM + infos.length * ROW_REM > from);
    reconcile(this.#canvas, visible, ({ label }) => label, section, (element, group) => this.#drawGroup(element, group, from, to));
    // The focused row may have been scrolled away.
    if (hadFocus && !this.#canvas.contains(document.activeElement)) this.focus({ preventScroll: true });
    const { listing, connection } = this.#state;
    if (listing.next !== null && connection === "online" && to > this.#source) this.#emit("more");
  }

  #drawGroup(element, { top, infos }, from, to) {
    const first = Math.max(0, Math.floor((from - top - HEAD_REM) / ROW_REM));
    const last = Math.max(first, Math.ceil((to - top - HEAD_REM) / ROW_REM));
    element.style.top = `${top}rem`;
    const list = element.lastElementChild;
    list.style.paddingTop = `${first * ROW_REM}rem`;
    reconcile(list, infos.slice(first, last), ({ id }) => id, () => h("li"), (row, info) => this.#drawRow(row, info));
  }

  #drawRow(row, info) {
    renderRow(row, info, this.#state, {
      renaming: this.#renaming === info.id,
      onMenu: (opener) => this.#openMenu(opener, info),
      onRename: (title) => this.#endRename(info.id, title),
    });
  }

  #openMenu(opener, { id }) {
    const info = this.#all().find((held) => held.id === id);
    openMenu(opener, [
      { label: t("list.rename"), icon: "edit", keys: "F2", act: () => this.#startRename(info) },
      { label: t(info.pinned ? "list.unpin" : "list.pin"), icon: "pin", act: () => this.#emit("pin", { id, pinned: !info.pinned }) },
      { label: t("share.menu"), icon: "share", act: () => openShareDialog(id, info.title || titleOf(this.#state, id)) },
      { label: t("export.menu"), icon: "download", act: () => openExport(id, this.#state.branches[id]) },
      { label: t("list.delete"), icon: "trash", keys: "Del", danger: true, act: () => this.#ask(info) },
    ]);
  }

  #startRename(info) {
    this.#renaming = info.id;
    this.#show(info);
    this.#draw();
  }

  #endRename(id, title) {
    this.#renaming = null;
    this.#draw();
    if (this.#canvas.contains(document.activeElement) || document.activeElement === document.body) this.#focusRow(id);
    if (title) this.#emit("rename", { id, title });
  }

  async #ask(info) {
    const all = this.#all();
    const at = all.indexOf(info);
    const next = all[at + 1] ?? all[at - 1];
    const title = info.title || titleOf(this.#state, info.id);
    if (!(await confirmed(t("delete.title"), t("delete.text", { title }), t("delete.yes")))) return this.#focusRow(info.id);
    if (next) this.#focusRow(next.id);
    else this.focus();
    this.#emit("delete", { id: info.id });
  }

  #pressed(event) {
    const row = event.target.closest("li");
    if (!row || event.target.matches("input")) return;
    const all = this.#all();
    const at = all.findIndex(({ id }) => id === row.dataset.key);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) this.#focusRow(all[Math.max(0, Math.min(to, all.length - 1))].id);
    else if (event.key === "F2") this.#startRename(all[at]);
    else if (event.key === "Delete") this.#ask(all[at]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #focusRow(id) {
    const info = this.#all().find((held) => held.id === id);
    if (!info) return;
    this.#show(info);
    this.#draw();
    const row = [...this.#canvas.querySelectorAll("li")].find(({ dataset }) => dataset.key === id);
    row?.firstElementChild.focus({ preventScroll: true });
  }

  /** Scroll a row into the view. */
  #show(info) {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const group = this.#groups.find(({ infos }) => infos.includes(info));
    if (!group) return;
    const top = (group.top + HEAD_REM + group.infos.indexOf(info) * ROW_REM) * rem;
    const row = ROW_REM * rem;
    if (top - HEAD_REM * rem < this.scrollTop) this.scrollTop = top - HEAD_REM * rem;
    else if (top + row > this.scrollTop + this.clientHeight) this.scrollTop = top + row - this.clientHeight;
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  }
}

function section({ label }) {
  return h("section", { "aria-label": label }, h("h2", {}, label === t("list.pinned") && icon("pin"), label), h("ul", { class: "sessions" }));
}

customElements.define("tl-list", ConversationList);
