/** Line icons on a 24 × 24 grid, in the colour of the surrounding text. */

const SVG = "http://www.w3.org/2000/svg";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  play: "M8 5l11 7-11 7z",
  stop: "M7 7h10v10H7z",
  attach: "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10 11v5M14 11v5",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  down: "M12 5v14M6 13l6 6 6-6",
  tool: "M14.5 6.5a4 4 0 0 1 5-1.2l-2.7 2.7 1.2 2 2.4.2 1-1a4 4 0 0 1-5.4 4.5L9 20.6a2 2 0 0 1-3-3l6.9-7a4 4 0 0 1 1.6-4.1z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1 1M17.4 17.4l1 1M18.4 5.6l-1 1M6.6 17.4l-1 1",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  warning: "M12 4l9 16H3zM12 10v4M12 17v.5",
  fork: "M7 8v8M7 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM17 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM17 8v1a4 4 0 0 1-4 4H7",
  share: "M12 15V4M8 8l4-4 4 4M6 12H5v8h14v-8h-1",
  download: "M12 4v11M8 11l4 4 4-4M5 20h14",
  gear: "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.2 2.2M16.2 16.2l2.2 2.2M18.4 5.6l-2.2 2.2M7.8 16.2l-2.2 2.2",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  again: "M19 12a7 7 0 1 1-2-4.9L19 9M19 4v5h-5",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v5",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15.5 15.5L20 20",
  chevron: "M9 6l6 6-6 6",
  chevron_down: "M6 9l6 6 6-6",
  terminal: "M4 5h16v14H4zM7 9l3 3-3 3M12.5 15H17",
  pulse: "M3 12h4l3-7 4 14 3-7h4",
  talks: "M4 5h12v9H9l-4 3v-3H4zM16 9h4v8h-1v3l-4-3h-4v-3",
  path: "M6 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM6 8v3a3 3 0 0 0 3 3h6a3 3 0 0 1 3 2",
  money: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM15 9c-.5-1-1.6-1.5-3-1.5-1.7 0-3 .8-3 2.2 0 3 6 1.6 6 4.5 0 1.4-1.3 2.3-3 2.3-1.5 0-2.7-.6-3.2-1.7M12 6v12",
  hand: "M8 12V6a1.5 1.5 0 0 1 3 0v5M11 11V4.5a1.5 1.5 0 0 1 3 0V11M14 11V6a1.5 1.5 0 0 1 3 0v8a6 6 0 0 1-6 6c-2.5 0-4-1-5.2-3l-2.3-4a1.5 1.5 0 0 1 2.5-1.6L8 13.5",
  inbox: "M5 5h14l2 8v6H3v-6zM3 13h5l1.5 3h5l1.5-3h5",
  robot: "M5 9h14v10H5zM12 5v4M12 4.5v.5M9 13v2M15 13v2M3 13v3M21 13v3",
  chip: "M7 7h10v10H7zM10 10h4v4h-4zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  hash: "M9 4L7 20M17 4l-2 16M4 9h16M4 15h16",
  plug: "M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4",
  keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M17.5 10h.01M8 14h8",
  key: "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12l8-8M16 7l3 3M14 9l2 2",
  person: "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM5 20a7 7 0 0 1 14 0",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 7v5l3 2",
  leave: "M14 4H5v16h9M10 12h10M16 8l4 4-4 4",
  list: "M8 7h11M8 12h11M8 17h11M4.5 7h.01M4.5 12h.01M4.5 17h.01",
};

/** @param {keyof typeof PATHS} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
