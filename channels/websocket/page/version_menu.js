/** Menu of the versions that begin at a message: text, time, length and model of each. On a phone it is a sheet. */
import { clockTime } from "/shared/dates.js";
import { t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";

/** Characters with which versions may begin alike; after more of them only their ends are shown. */
const LONG = 16;

/** @param {HTMLElement} opener @param {import("./api.js").Version[]} versions @param {(id: string) => void} choose */
export function openVersions(opener, versions, choose) {
  const shared = sharedStart(versions.map(({ text }) => text));
  const items = versions.map(({ id, text, created_at, messages, model, shown }, at) => ({
    label: (at > 0 && shared > LONG ? `… ${text.slice(shared)}` : text) || t("list.untitled"),
    note: [clockTime(created_at), t("message.length", { count: messages }), model].filter(Boolean).join(" · "),
    checked: shown,
    act: () => shown || choose(id),
  }));
  openMenu(opener, items, { title: t("message.versions"), keys: ["[", "]"], look: "version-menu", beside: opener.closest("tl-message") });
}

/** Return how many characters, up to the end of a word, all texts begin with and go on after. */
function sharedStart([first, ...others]) {
  const isShared = (at) => others.every((text) => text.length > at && text[at] === first[at]);
  let at = 0;
  while (at < first.length && isShared(at)) at++;
  return first.lastIndexOf(" ", at) + 1;
}
