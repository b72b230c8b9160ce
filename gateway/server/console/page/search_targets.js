/** What a search is for: a link, a message, a conversation, a setting, or words. */
import { t } from "/shared/language.js";
import { counted } from "./amounts.js";
import { read } from "./api.js";
import { describe } from "./descriptions.js";
import { addressOf } from "./router.js";
import { matching } from "./words.js";

/** What is an id even if the gateway does not know it: a UUID or a number, such as "1731234567.000100" or "12:7". */
const ID = /^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{5,}|\d+[.:]\d+)$/i;
/** What may be one: a word with a digit or a colon, such as "m7" or "telegram:main:42". */
const PERHAPS = /^(?=\S*[\d:])[!-~]{2,200}$/;
/** A key of a setting has several parts. */
const KEY = /^\w+([._]\w+)+$/;

/** Return the address of what a user searched. @param {string} text */
export async function targetOf(text) {
  const why = addressOf("why", [text]);
  if (/^https?:\/\/\S+$/i.test(text)) return text.startsWith(`${location.origin}/console/`) ? text.slice(location.origin.length) : why;
  const words = addressOf("conversations", [], { q: text });
  try {
    if (PERHAPS.test(text)) {
      if ((await read(`/api/why/${encodeURIComponent(text)}`)).verdict?.code !== "unknown") return why;
      if (ID.test(text)) return why;
      const session = await read(`/api/sessions/${encodeURIComponent(text)}`).catch(() => null);
      if (session) return addressOf("conversations", [session.id]);
    }
    if (KEY.test(text) && (await settingsWith(text)).some(({ key }) => key.includes(text.toLowerCase()))) return addressOf("settings", [], { q: text });
  } catch {
    // The screen that opens reads too, and says what the problem is.
  }
  return words;
}

/** Return links to what else has all words of a search: settings and rooms. @param {string} q @returns {Promise<[string, string][]>} */
export async function otherFinds(q, { signal }) {
  const [settings, rooms] = await Promise.all([settingsWith(q, { signal }), read("/api/console/rooms", {}, { signal })]);
  const found = { settings: settings.length, rooms: matching(rooms.rooms, q, roomText).length };
  return Object.entries(found).filter(([, count]) => count > 0).map(([screen, count]) => [addressOf(screen, [], { q }), `${t(`${screen}.title`)}: ${counted(count)}`]);
}

/** Return the text of a room that a search looks at. */
export function roomText({ name, chat, agent }) {
  return `${name} ${chat} ${agent}`;
}

/** Return the text of a setting that a search looks at. */
export function settingText(setting) {
  return `${setting.key} ${describe(setting).text} ${setting.source}`;
}

async function settingsWith(q, options) {
  return matching((await read("/api/settings", {}, options)).settings, q, settingText);
}
