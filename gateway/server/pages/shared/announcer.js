/** Live region for screen readers: announces finished blocks politely, never text that still changes. */

/** Announced texts are removed after a while, so that a screen reader does not meet them again on the page. */
const KEPT_MS = 10_000;

/** @param {Element[]} blocks */
export function announce(blocks) {
  const region = document.getElementById("announcements");
  for (const block of blocks) {
    const line = document.createElement("p");
    line.textContent = block.textContent;
    region.append(line);
    setTimeout(() => line.remove(), KEPT_MS);
  }
}
