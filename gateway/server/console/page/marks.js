/** Marks of stations, drawn as SVG: the shape says the state, as the colour does. */

const SVG = "http://www.w3.org/2000/svg";

/** Return an SVG element. @param {string} tag @param {Record<string, string | number>} attributes @param {...Node} children */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

const ring = () => svg("circle", { class: "ring", cx: 12, cy: 12, r: 6 });
const disc = (r) => svg("circle", { class: "disc", cx: 12, cy: 12, r });
const sign = (d) => svg("path", { class: "sign", d });

/** Shapes by state: ring, filled, cross, dashed. */
const SHAPES = {
  ok: () => [ring()],
  changed: () => [ring(), svg("circle", { class: "core", cx: 12, cy: 12, r: 2 })],
  running: () => [svg("circle", { class: "halo", cx: 12, cy: 12, r: 11 }), disc(7)],
  waiting: () => [ring(), svg("path", { class: "hands", d: "M12 9.5V12l1.8 1.2" })],
  person: () => [svg("circle", { class: "halo", cx: 12, cy: 12, r: 11 }), disc(7)],
  failed: () => [disc(11), sign("M8 8l8 8M16 8l-8 8")],
  refused: () => [disc(11), sign("M7 12h10")],
  skipped: () => [svg("circle", { class: "dashes", cx: 12, cy: 12, r: 7 }), svg("path", { class: "hands", d: "M9 12h6" })],
  unrecorded: () => [svg("path", { class: "dashes", d: "M5 5h14v14H5z" })],
  restart: () => [disc(11), sign("M16.5 12a4.5 4.5 0 1 1-1.3-3.2L16.5 10M16.5 6.8V10h-3.2")],
  placed: () => [sign("M12 19V6M6.5 11.5L12 6l5.5 5.5")],
  never: () => [svg("circle", { class: "dashes", cx: 12, cy: 12, r: 7 })],
};

/** @param {string} state @returns {SVGElement} */
export function mark(state) {
  return svg("svg", { viewBox: "-2 -2 28 28", class: "mark", "aria-hidden": "true" }, ...(SHAPES[state] ?? SHAPES.ok)());
}
