/** Dialog that creates, lists and revokes the public pages of a conversation, and shows what they show. */
import { listShares, previewShare, revokeShare, shareSession } from "./api.js";
import { copyButton } from "/shared/copy_button.js";
import { fullTime } from "/shared/dates.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";

const DAYS = [1, 7, 30, 365];

/** @param {string} session @param {string} title */
export function openShareDialog(session, title) {
  const days = h("select", { id: "share-days" }, ...DAYS.map((count) => h("option", { value: count, selected: count === 7 }, String(count))));
  const create = h("button", { type: "submit", class: "primary" }, t("share.create"));
  const made = h("p", { class: "made", role: "status" });
  const list = h("ul", { class: "shares", "aria-label": t("share.links") });
  const form = h("form", { class: "line" }, h("label", { for: "share-days" }, t("share.expiry")), days, create);
  openDialog(t("share.title"), h("p", {}, h("strong", {}, title)), h("p", { class: "muted" }, t("share.what")), preview(session), form, made, list);
  const show = () => showShares(list, session);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    create.disabled = true;
    const { url, error } = await shareSession(session, Number(days.value));
    create.disabled = false;
    made.replaceChildren(...(url ? address(url) : [error]));
    show();
  });
  show();
}

/** Return the messages that a link shows, read when they are unfolded. */
function preview(session) {
  const body = h("div", { class: "share-preview", tabindex: "0", role: "group", "aria-label": t("share.preview") });
  const element = h("details", { class: "folded" }, h("summary", {}, icon("chevron"), h("span", {}, t("share.preview"))), body);
  element.addEventListener("toggle", async () => {
    if (!element.open) return;
    const found = await previewShare(session);
    if (found === null) return body.replaceChildren(t("share.failed"));
    const articles = found.messages.map(({ role, parts }) => h("article", {}, h("h3", {}, t(`who.${role}`)), ...parts.map(shown)));
    body.replaceChildren(...(found.cut ? [h("p", { class: "muted" }, t("share.cut"))] : []), ...articles, ...(articles.length ? [] : [t("share.empty")]));
  });
  return element;
}

/** Return a part of a message as text; its tools are named, with what they got and returned. */
function shown(part) {
  const texts = { text: part.content, error: part.message, image: part.alt_text || t("file.image"), file: part.path };
  if (part.type in texts) return h("p", { class: "typed" }, texts[part.type]);
  return h("pre", {}, part.type === "tool_call" ? `${part.tool_name} ${JSON.stringify(part.arguments ?? {}, null, 1)}` : part.output);
}

function address(url) {
  const field = h("input", { readonly: true, value: url, "aria-label": t("share.link") });
  field.addEventListener("focus", () => field.select());
  return [field, copyButton(t("share.copy"), () => url), h("small", { class: "muted" }, t("share.once"))];
}

async function showShares(list, session) {
  const shares = await listShares(session);
  list.replaceChildren(...(shares ?? []).map((share) => row(share, list, session)));
  if (shares === null) list.append(h("li", {}, t("share.failed")));
}

function row({ id, created_at, expires_at, views }, list, session) {
  const revoke = h("button", { type: "button", "aria-label": t("share.revoke_of", { time: fullTime(created_at) }) }, t("share.revoke"));
  const state = h("span", {}, t("share.made", { time: fullTime(created_at) }), h("small", { class: "muted" }, t("share.state", { time: fullTime(expires_at), count: views })));
  revoke.addEventListener("click", async () => {
    if (await revokeShare(id)) showShares(list, session);
    else state.append(h("small", { role: "alert" }, t("share.failed")));
  });
  return h("li", {}, state, revoke);
}
