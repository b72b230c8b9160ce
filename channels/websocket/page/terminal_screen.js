/**
 * The rows of a terminal, drawn from what the gateway rendered: text and classes, never HTML.
 *
 * @typedef {[index: number, runs: [text: string, style?: string][]]} Row
 */
import { h } from "/shared/dom.js";

const STYLE = /^(?:[fb](?:\d{1,2}|1\d\d|2[0-4]\d|25[0-5])|[odiusr])$/;
/** Characters of two columns; a font may draw them wider or narrower. */
const WIDE = /([\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation})/u;
const LARGEST_FONT = 14;
const SMALLEST_FONT = 8;
const LEVELS = [0, 95, 135, 175, 215, 255];

export class TerminalScreen {
  #rows = h("div", { class: "rows" });
  #cursor = h("i", { class: "cursor", "aria-hidden": "true", hidden: true });
  #size = [0, 0];

  /** @param {string} label of the screen for assistive technology */
  constructor(label) {
    addColours();
    this.element = h("div", { class: "screen", role: "document", "aria-label": label, tabindex: "0" }, this.#rows, this.#cursor);
    new ResizeObserver(() => this.#scale()).observe(this.element);
  }

  /** @param {{size: [number, number], cursor: [number, number] | null, rows: Row[]}} batch */
  draw({ size, cursor, rows }) {
    if (String(size) !== String(this.#size)) {
      this.#size = size;
      this.#rows.replaceChildren(...Array.from({ length: size[0] }, () => h("div")));
      this.#scale();
    }
    for (const [index, runs] of rows) this.#rows.children[index]?.replaceChildren(...runs.flatMap(([text, style]) => drawRun(text, style)));
    this.#cursor.hidden = cursor === null;
    if (cursor === null) return;
    this.#cursor.style.top = `${cursor[0]}lh`;
    this.#cursor.style.left = `${cursor[1]}ch`;
  }

  /** Return the rows and columns that fit at the largest font. */
  fitting() {
    const { clientWidth, clientHeight } = this.element;
    const { width, height } = this.#cell();
    return { rows: Math.max(5, Math.floor(clientHeight / height)), columns: Math.max(20, Math.floor(clientWidth / width)) };
  }

  /** Make all columns fit, as long as the text stays readable. */
  #scale() {
    const columns = this.#size[1];
    if (columns === 0 || this.element.clientWidth === 0) return;
    const fitting = (LARGEST_FONT * this.element.clientWidth) / (columns * this.#cell().width);
    this.element.style.setProperty("--font", `${Math.max(SMALLEST_FONT, Math.min(LARGEST_FONT, Math.floor(fitting * 4) / 4))}px`);
  }

  /** Return the size of a column and a row at the largest font. */
  #cell() {
    const probe = h("span", { class: "probe" }, "0".repeat(40));
    this.element.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    return { width: width / 40, height };
  }
}

function drawRun(text, style = "") {
  const classes = shownClasses(style);
  const pieces = text.split(WIDE).filter((piece) => piece !== "");
  return pieces.map((piece) => {
    const names = WIDE.test(piece) ? [...classes, "wide"] : classes;
    return names.length ? h("span", { class: names.join(" ") }, piece) : piece;
  });
}

/** Return the classes of a style; reversed colours are exchanged, those of the screen have the names fd and bd. */
function shownClasses(style) {
  const classes = style.split(" ").filter((name) => STYLE.test(name));
  if (!classes.includes("r")) return classes;
  const colour = (letter) => classes.find((name) => name.startsWith(letter) && name.length > 1)?.slice(1) ?? "d";
  return [...classes.filter((name) => name.length === 1 && name !== "r"), `f${colour("b")}`, `b${colour("f")}`];
}

let coloured = false;

/** Add the 240 colours after the first 16, which terminal.css has. */
function addColours() {
  if (coloured) return;
  coloured = true;
  const sheet = new CSSStyleSheet();
  for (let index = 16; index < 256; index++) {
    const [red, green, blue] = index < 232 ? [36, 6, 1].map((step) => LEVELS[Math.floor((index - 16) / step) % 6]) : Array(3).fill(8 + 10 * (index - 232));
    sheet.insertRule(`.screen .f${index} { color: rgb(${red} ${green} ${blue}) }`);
    sheet.insertRule(`.screen .b${index} { background: rgb(${red} ${green} ${blue}) }`);
  }
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
