/**
 * Table of rows: sorted by its head, walked with J and K, opened with Enter or a click. Above 200 rows only those
 * near the view are in the document, and screen readers get the numbers of all.
 */
import { h, reconcile } from "./dom.js";
import { icon } from "./icons.js";

const MOST_ROWS = 200;
const MARGIN_ROWS = 40;

/**
 * @template T
 * @typedef {object} Column
 * @property {string} label of the head
 * @property {(row: T) => Node | string} show the content of a cell
 * @property {(row: T) => string | number} [sort] the value to sort by; without it the head is not a button
 * @property {boolean} [right] for numbers
 * @property {boolean} [unnamed] the label is for screen readers alone
 * @property {string} [class] of its head and its cells; those of the class "more" are not shown on a phone
 */

/** @template T */
export class Table {
  /**
   * @param {object} options
   * @param {string} options.label what the table lists
   * @param {Column<T>[]} options.columns the first one holds the link of its row
   * @param {(row: T) => string} options.keyOf
   * @param {(row: T) => string} [options.address] of what a row opens
   * @param {(row: T, event: Event) => void} [options.open] called instead of following the link
   * @param {number} [options.rowHeight] in pixels: 36 for one line, 46 for two
   */
  constructor({ label, columns, keyOf, address, open, rowHeight = 36 }) {
    Object.assign(this, { columns, keyOf, address, open, rowHeight });
    /** @type {T[]} */ this.rows = [];
    this.total = 0;
    this.sorted = { column: -1, down: false };
    this.current = 0;
    /** Key of the row that is shown in a form or a conversation beside the table. @type {string | undefined} */ this.shown = undefined;
    this.heads = columns.map((column, index) => this.#head(column, index));
    this.body = h("tbody");
    this.above = spacer(columns.length);
    this.below = spacer(columns.length);
    this.table = h("table", {}, h("caption", { class: "offscreen" }, label), h("thead", {}, h("tr", {}, ...this.heads)), this.above, this.body, this.below);
    this.element = h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label }, this.table);
    this.element.addEventListener("scroll", () => this.#render(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#pressed(event));
    this.body.addEventListener("click", (event) => this.#clicked(event));
    this.body.addEventListener("focusin", (event) => this.#focused(event));
  }

  /**
   * Show other rows. The focus, the sorting and the place stay.
   * @param {readonly T[]} rows @param {number} [total] with those that are not read yet
   */
  setRows(rows, total = rows.length) {
    this.total = total;
    const key = this.rows[this.current] && this.keyOf(this.rows[this.current]);
    this.rows = [...rows];
    this.#sort();
    const found = key === undefined ? -1 : this.rows.findIndex((row) => this.keyOf(row) === key);
    this.current = found < 0 ? Math.max(0, Math.min(this.current, this.rows.length - 1)) : found;
    this.#render();
  }

  /** Select the next row or the one before, and focus it. @param {number} step */
  move(step) {
    if (this.rows.length === 0) return;
    const isInside = this.body.contains(document.activeElement);
    this.#select(Math.max(0, Math.min(this.rows.length - 1, this.current + (isInside ? step : 0))));
  }

  get isWindowed() {
    return this.rows.length > MOST_ROWS;
  }

  #select(index) {
    this.current = index;
    if (this.isWindowed) {
      const [top, height] = [index * this.rowHeight, this.element.clientHeight - this.rowHeight];
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      else if (top + this.rowHeight > this.element.scrollTop + height) this.element.scrollTop = top + this.rowHeight - height;
    }
    this.#render();
    const row = [...this.body.children].find((each) => each.dataset.key === this.keyOf(this.rows[index]));
    row?.querySelector(".row-open")?.focus();
  }

  #head(column, index) {
    const attributes = { scope: "col", class: classOf(column) };
    if (!column.sort) return h("th", attributes, column.unnamed ? h("span", { class: "offscreen" }, column.label) : column.label);
    const sort = () => {
      const down = this.sorted.column === index && !this.sorted.down;
      this.sorted = { column: index, down };
      this.heads.forEach((head, at) => (at === index ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
      this.setRows(this.rows, this.total);
    };
    return h("th", attributes, h("button", { type: "button", class: "sort", onclick: sort }, column.label, icon("chevron_down")));
  }

  #sort() {
    const { column, down } = this.sorted;
    const valueOf = this.columns[column]?.sort;
    if (!valueOf) return;
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    this.rows.sort((a, b) => order(valueOf(a), valueOf(b)) * (down ? -1 : 1));
  }

  #range() {
    if (!this.isWindowed) return [0, this.rows.length];
    const first = Math.floor(this.element.scrollTop / this.rowHeight) - MARGIN_ROWS;
    const shown = Math.ceil(this.element.clientHeight / this.rowHeight) + 2 * MARGIN_ROWS;
    const start = Math.max(0, Math.min(first, this.rows.length - shown));
    return [start, Math.min(this.rows.length, start + Math.min(shown, MOST_ROWS))];
  }

  #render() {
    const [start, end] = this.#range();
    const had = this.body.contains(document.activeElement);
    this.element.classList.toggle("windowed", this.isWindowed);
    this.element.style.setProperty("--row", `${this.rowHeight}px`);
    this.table.setAttribute("aria-rowcount", String(this.total + 1));
    size(this.above, start * this.rowHeight);
    size(this.below, (this.rows.length - end) * this.rowHeight);
    const place = new Map(this.rows.slice(start, end).map((row, at) => [row, start + at]));
    reconcile(this.body, [...place.keys()], this.keyOf, () => h("tr"), (element, row) => this.#update(element, row, place.get(row)));
    // A row that was scrolled away takes the focus with it; the keyboard goes on from the table.
    if (had && !this.body.contains(document.activeElement)) this.element.focus({ preventScroll: true });
  }

  #update(element, row, index) {
    element.setAttribute("aria-rowindex", String(index + 2));
    if (this.keyOf(row) === this.shown) element.setAttribute("aria-current", "true");
    else element.removeAttribute("aria-current");
    const link = element.querySelector(".row-open");
    if (link) link.tabIndex = index === this.current ? 0 : -1;
    // Equal rows are the same object; redrawing them would drop a selection of text.
    if (element.drawn === row) return;
    const focused = element.contains(document.activeElement) && document.activeElement.classList.contains("row-open");
    element.drawn = row;
    element.replaceChildren(...this.columns.map((column, at) => this.#cell(column, row, at, index)));
    if (focused) element.querySelector(".row-open")?.focus({ preventScroll: true });
  }

  #cell(column, row, at, index) {
    const content = column.show(row);
    const attributes = { class: classOf(column) };
    if (at > 0 || !(this.address || this.open)) return h("td", attributes, content);
    const own = { class: "row-open", tabindex: index === this.current ? "0" : "-1" };
    const opener = this.address ? h("a", { ...own, href: this.address(row) }, content) : h("button", { ...own, type: "button" }, content);
    return h("td", attributes, opener);
  }

  #pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.target.closest("button, input, select, textarea") && !event.target.classList.contains("row-open")) return;
    if (event.key === "Home") this.#select(0);
    else if (event.key === "End") this.#select(this.rows.length - 1);
    else if (step) this.move(step);
    else return;
    event.preventDefault();
  }

  #clicked(event) {
    const row = event.target.closest("tr")?.drawn;
    if (!row || event.defaultPrevented) return;
    const own = event.target.closest("a, button, input, label");
    if (own && !own.classList.contains("row-open")) return;
    this.current = this.rows.indexOf(row);
    this.#render();
    if (this.open) {
      event.preventDefault();
      this.open(row, event);
    } else if (!own) event.target.closest("tr").querySelector("a.row-open")?.click();
  }

  #focused(event) {
    const index = this.rows.indexOf(event.target.closest("tr")?.drawn);
    if (index < 0 || index === this.current) return;
    this.current = index;
    this.#render();
  }
}

function classOf({ right, class: own }) {
  return [right && "right", own].filter(Boolean).join(" ") || undefined;
}

function spacer(columns) {
  return h("tbody", { "aria-hidden": "true", hidden: true }, h("tr", {}, h("td", { colspan: columns, class: "spacer" })));
}

function size(body, height) {
  body.hidden = height === 0;
  body.querySelector("td").style.height = `${height}px`;
}
