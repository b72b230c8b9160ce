/** Discord's Markdown, as far as the page shows it. */

import { h } from "/_fake/page/dom.js";

const BLOCKS = /```(?:[\w+-]*\n)?([\s\S]*?)```/g;
const INLINE =
  /`([^`\n]+)`|\*\*([\s\S]+?)\*\*|__([\s\S]+?)__|~~([\s\S]+?)~~|\|\|([\s\S]+?)\|\||\*([^*\n]+)\*|_([^_\n]+)_|\[([^\]\n]+)\]\((https?:[^)\s]+)\)|<@!?(\d+)>|<(https?:[^>\s]+)>|(https?:\S+)|(@everyone|@here)/g;

/** Return a message's text in one line, without markup. */
export function plain(text, names) {
  return written(text, names).map((node) => (typeof node === "string" ? node : node.textContent)).join("").replaceAll("\n", " ");
}

/** Return a message's text as nodes. `names` are user names by id. */
export function written(text, names) {
  const nodes = [];
  let from = 0;
  for (const block of text.matchAll(BLOCKS)) {
    nodes.push(...lines(text.slice(from, block.index).replace(/\n$/, ""), names), h("pre", {}, block[1].replace(/\n$/, "")));
    from = block.index + block[0].length;
    if (text[from] === "\n") from += 1;
  }
  return [...nodes, ...lines(text.slice(from), names)];
}

function lines(text, names) {
  const nodes = [];
  for (const line of text.split("\n")) {
    const heading = /^(#{1,3}) (.+)$/.exec(line);
    const small = /^-# (.+)$/.exec(line);
    const quote = /^> (.*)$/.exec(line);
    const item = /^(\s*)(?:[-*]|(\d+)\.) (.+)$/.exec(line);
    if (heading) nodes.push(h("span", { class: `heading h${heading[1].length}` }, inline(heading[2], names)));
    else if (small) nodes.push(h("small", {}, inline(small[1], names)));
    else if (quote) nodes.push(h("span", { class: "quote" }, inline(quote[1], names)));
    else if (item) nodes.push(h("span", { class: "item" }, `${item[1]}${item[2] ? `${item[2]}.` : "•"} `, inline(item[3], names)));
    else nodes.push(...inline(line, names), "\n");
  }
  if (nodes.at(-1) === "\n") nodes.pop();
  return nodes;
}

function inline(text, names) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(from, match.index), element(match, names));
    from = match.index + match[0].length;
  }
  return [...nodes, text.slice(from)];
}

function element(match, names) {
  const [whole, code, bold, under, gone, hidden, slanted, alsoSlanted, label, address, person, bare, plain, all] = match;
  if (code !== undefined) return h("code", {}, code);
  if (bold !== undefined) return h("strong", {}, inline(bold, names));
  if (under !== undefined) return h("u", {}, inline(under, names));
  if (gone !== undefined) return h("s", {}, inline(gone, names));
  if (hidden !== undefined) return h("span", { class: "spoiler", tabindex: 0 }, inline(hidden, names));
  if (slanted ?? alsoSlanted) return h("em", {}, inline(slanted ?? alsoSlanted, names));
  if (person !== undefined) return h("span", { class: "mention" }, `@${names.get(person) ?? person}`);
  if (all !== undefined) return h("span", { class: "mention" }, all);
  const target = address ?? bare ?? plain;
  return target ? h("a", { href: target, rel: "noreferrer noopener", target: "_blank" }, label ?? target) : whole;
}
