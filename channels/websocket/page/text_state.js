/**
 * State of a streamed text part: finished blocks as HTML, the open tail as plain text.
 * Lengths on the wire count code points; JavaScript strings count UTF-16 units. Pure.
 *
 * @typedef {object} TextPart
 * @property {"text"} type
 * @property {string} kind "text", "reasoning", "summary" or "notice"
 * @property {string} text the whole source
 * @property {number} length code points of `text`
 * @property {readonly string[]} blocks safe HTML of the finished blocks
 * @property {number} upto code points of `text` that the blocks cover
 * @property {string} tail the text after the last block
 */

/** @returns {TextPart} */
export function emptyText(kind = "text") {
  return { type: "text", kind, text: "", length: 0, blocks: [], upto: 0, tail: "" };
}

/**
 * Return the part with a chunk added. `accumulated` is the length after the chunk, so that
 * text that is already there is not added again.
 * @param {TextPart} part
 */
export function withChunk(part, content, accumulated) {
  const size = codePoints(content);
  const fresh = accumulated - part.length;
  if (fresh <= 0) return part;
  const added = fresh < size ? skip(content, size - fresh) : content;
  return { ...part, text: part.text + added, tail: part.tail + added, length: accumulated };
}

/**
 * Return the part with one more finished block; repeated and out-of-order blocks are ignored.
 * @param {TextPart} part
 * @param {{block_index: number, html: string, upto: number}} block
 */
export function withBlock(part, block) {
  if (block.block_index !== part.blocks.length || block.upto <= part.upto) return part;
  return {
    ...part,
    blocks: [...part.blocks, block.html],
    upto: block.upto,
    tail: skip(part.tail, block.upto - part.upto),
  };
}

/**
 * Return the part as in the log. Blocks that are already shown stay the same strings, so that they are not redrawn.
 * @param {{content: string, kind?: string}} wire
 * @param {string | undefined} html of the whole text
 * @param {TextPart | undefined} held the part as streamed so far
 * @returns {TextPart}
 */
export function finishedText(wire, html, held) {
  const length = codePoints(wire.content);
  const whole = { ...emptyText(wire.kind ?? "text"), text: wire.content, length };
  if (html === undefined) return held?.text === wire.content ? held : { ...whole, tail: wire.content };
  const shown = held?.blocks ?? [];
  const prefix = shown.join("");
  const keep = shown.length > 0 && html.startsWith(prefix);
  const rest = keep ? html.slice(prefix.length) : html;
  return { ...whole, blocks: [...(keep ? shown : []), ...(rest ? [rest] : [])], upto: length };
}

/** @param {string} text */
export function codePoints(text) {
  let count = text.length;
  for (let i = 0; i < text.length; i++) if (isPair(text, i)) count--, i++;
  return count;
}

/** Return the text without its first `count` code points. */
function skip(text, count) {
  let i = 0;
  for (let n = 0; n < count && i < text.length; n++) i += isPair(text, i) ? 2 : 1;
  return text.slice(i);
}

function isPair(text, i) {
  const first = text.charCodeAt(i);
  if (first < 0xd800 || first > 0xdbff) return false;
  const second = text.charCodeAt(i + 1);
  return second >= 0xdc00 && second <= 0xdfff;
}
