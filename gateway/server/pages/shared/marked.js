/** Text in which a search found words. */
import { h } from "./dom.js";

/** Return a snippet with its matches marked. Ranges count code points. @param {string} snippet @param {[number, number][]} matches */
export function marked(snippet, matches) {
  const points = Array.from(snippet);
  const pieces = [];
  let at = 0;
  for (const [start, end] of matches) {
    pieces.push(points.slice(at, start).join(""), h("mark", {}, points.slice(start, end).join("")));
    at = end;
  }
  return [...pieces, points.slice(at).join("")];
}
