/** Reads finished blocks to people who listen: politely, and never the text that still changes. */

const KEPT = 20;

/** @param {Element[]} blocks */
export function announce(blocks) {
  const region = document.getElementById("announcements");
  for (const block of blocks) {
    const line = document.createElement("p");
    line.textContent = block.textContent;
    region.append(line);
  }
  while (region.childElementCount > KEPT) region.firstElementChild.remove();
}
