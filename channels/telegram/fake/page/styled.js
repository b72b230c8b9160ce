/** Conversion of a text with entities to DOM nodes. Offsets count UTF-16 units, as JavaScript strings do. */

import { h } from "/_fake/page/dom.js";

const TAGS = {
  bold: "strong", italic: "em", underline: "u", strikethrough: "s", code: "code", pre: "pre",
  blockquote: "blockquote", expandable_blockquote: "blockquote",
};

/** @returns {(Node | string)[]} */
export function styled(text, entities = []) {
  return span(text, 0, text.length, [...entities].sort((a, b) => a.offset - b.offset || b.length - a.length));
}

function span(text, from, to, entities) {
  const found = [];
  let at = from;
  for (let i = 0; i < entities.length; i += 1) {
    const entity = entities[i];
    if (entity.offset < at) continue;
    const end = Math.min(to, entity.offset + entity.length);
    const inner = entities.slice(i + 1).filter((other) => other.offset < end && other.offset >= entity.offset);
    found.push(text.slice(at, entity.offset), wrapped(entity, span(text, entity.offset, end, inner), text));
    at = end;
  }
  found.push(text.slice(at, to));
  return found.filter((part) => part !== "");
}

function wrapped(entity, content, text) {
  if (entity.type === "text_link" || entity.type === "url") {
    const address = entity.url ?? text.slice(entity.offset, entity.offset + entity.length);
    return h("a", { href: safe(address), rel: "noreferrer noopener", target: "_blank" }, ...content);
  }
  if (entity.type === "spoiler") return h("span", { class: "spoiler" }, ...content);
  if (entity.type === "bot_command" || entity.type.endsWith("mention")) return h("strong", {}, ...content);
  return h(TAGS[entity.type] ?? "span", { title: entity.language }, ...content);
}

function safe(address) {
  return /^https?:\/\//i.test(address) ? address : undefined;
}
