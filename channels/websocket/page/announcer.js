/** Reads finished blocks to people who listen: politely, and never the text that still changes. */

/** Long enough to be read; left longer, it would be met again at the end of the page. */
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
