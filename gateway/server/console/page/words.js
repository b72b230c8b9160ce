/** Words of the console for names that the gateway may add later, and for the sentences that it sends. */
import { h } from "/shared/dom.js";
import { has, t } from "/shared/language.js";

/** Return a string of the interface, or the name as it is if the interface has none for it. */
export function word(key, name = "") {
  return has(key) ? t(key) : String(name).replaceAll("_", " ");
}

/** Return the first sentence of a text and the rest. @param {string} text @returns {[string, string]} */
export function firstSentence(text) {
  const end = /[.!?](?= \p{Lu})/u.exec(text);
  return end ? [text.slice(0, end.index + 1), text.slice(end.index + 2)] : [text, ""];
}

/** Return the rows whose text has all words. @template T @param {T[]} rows @param {string} words @param {(row: T) => string} textOf */
export function matching(rows, words, textOf) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const text = textOf(row).toLowerCase();
    return wanted.every((one) => text.includes(one));
  });
}

/** Return a channel in two letters, such as TG. @param {string} channel */
export function shortChannel(channel) {
  const known = { telegram: "TG", discord: "DC", slack: "SL", websocket: "WB", matrix: "MX", email: "EM", signal: "SI", whatsapp: "WA", cli: "CL", api: "AP", openai: "AP", schedule: "SC" };
  return known[channel] ?? channel.slice(0, 2).toUpperCase();
}

const SPELLED = { websocket: "WebSocket", whatsapp: "WhatsApp" };

/** Return the name of a channel, such as Telegram. @param {string} id */
export function channelName(id) {
  return SPELLED[id] ?? id.charAt(0).toUpperCase() + id.slice(1);
}

/** Return a long id cut in the middle. @param {string} id */
export function shortId(id) {
  return id.length > 20 ? `${id.slice(0, 9)}…${id.slice(-5)}` : id;
}

/** Return the lines of a diff as elements. @param {string[]} lines */
export function diffLines(lines) {
  return lines.map((line) => h("span", { class: { "+": "added", "-": "removed" }[line[0]] ?? "muted" }, `${line}\n`));
}
