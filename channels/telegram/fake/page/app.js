/** The page: the list of chats, and the open chat. */

import { find, h } from "/_fake/page/dom.js";
import { act, follow, onRefusal } from "/_fake/page/fake.js";
import { draftItem, messageItem } from "/_fake/page/message.js";

const $ = (id) => find(`#${id}`);
let now = { version: -1, rooms: [], bot: { name: "" }, problems: [] };
let open = Number(location.hash.slice(1)) || null;
let answering = null;
let shown = "";

const openChat = () => now.rooms.find((one) => one.chat.id === open) ?? now.rooms[0];
const nameOf = (one) => one.chat.title ?? one.chat.first_name;

onRefusal((text) => {
  $("notice").textContent = text;
  $("notice").hidden = !text;
});

function drawChats() {
  $("bot").textContent = `${now.bot.name} · @${now.bot.username} · ${now.calls} calls`;
  $("rooms").replaceChildren(...now.rooms.map((one) => {
    const last = one.messages.at(-1);
    return h("li", {}, h("button", { type: "button", "aria-current": String(one === openChat()), onclick: () => choose(one) },
      h("span", {}, nameOf(one)), h("span", {}, one.chat.type === "private" ? "" : one.chat.is_forum ? "forum" : "group"),
      h("small", {}, last?.source ?? last?.text ?? last?.caption ?? (last ? "…" : "nothing yet"))));
  }));
  $("problems").hidden = now.problems.length === 0;
  $("problems").firstElementChild.textContent = `Problems (${now.problems.length})`;
  $("problems").lastElementChild.replaceChildren(...now.problems.map((problem) => h("li", {}, problem)));
}

function drawChat() {
  const one = openChat();
  if (!one) return;
  $("title").textContent = nameOf(one);
  $("about").textContent = [one.chat.type, one.admin && "the bot is an administrator", one.people.join(", ")].filter(Boolean).join(" · ");
  $("block").hidden = one.chat.type !== "private";
  $("block").textContent = one.blocked ? "Unblock the bot" : "Block the bot";
  fill($("who"), one.people.map((name) => [name, name]));
  fill($("thread"), [["", one.chat.is_forum ? "General" : "New topic"], ...one.topics.map((topic) => [String(topic.id), topic.name])]);
  $("thread").hidden = one.topics.length === 0;
  $("action").textContent = one.drafts.length ? "" : currentAction(one);
  const drawn = JSON.stringify([one.chat.id, one.messages, one.drafts]);
  if (drawn === shown) return;
  shown = drawn;
  const list = $("messages");
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
  list.replaceChildren(
    ...one.messages.map((message) => messageItem(message, { press, reply })),
    ...one.drafts.map((draft) => draftItem(draft, () => act("stop", { chat: one.chat.id }))));
  if (atEnd) list.scrollTop = list.scrollHeight;
}

const lastActions = new Map();

/** Return the bot's last action, such as typing, as text. It is shown for five seconds. */
function currentAction(one) {
  const before = lastActions.get(one.chat.id) ?? { count: one.actions, until: 0 };
  if (one.actions > before.count) {
    before.count = one.actions;
    before.until = Date.now() + 5000;
    setTimeout(drawChat, 5100);
  }
  lastActions.set(one.chat.id, before);
  return Date.now() < before.until ? `${now.bot.name}: ${one.action.replaceAll("_", " ")}…` : "";
}

function fill(select, options) {
  const key = JSON.stringify(options);
  if (select.dataset.key === key) return;
  const chosen = select.value;
  select.dataset.key = key;
  select.replaceChildren(...options.map(([value, label]) => h("option", { value }, label)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

function choose(one) {
  open = one.chat.id;
  location.hash = String(open);
  reply(null);
  drawChats();
  drawChat();
  $("messages").scrollTop = $("messages").scrollHeight;
  $("text").focus();
}

function press(message, button) {
  act("press", { chat: openChat().chat.id, message: message.message_id, button: button.callback_data, user: $("who").value });
}

function reply(message) {
  answering = message;
  $("replying").hidden = !message;
  $("replying").firstElementChild.textContent = message ? `Reply to ${message.text ?? message.caption ?? "this"}` : "";
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || !openChat()) return;
  $("text").value = "";
  act("say", {
    chat: openChat().chat.id, text, user: $("who").value || null,
    reply_to: answering?.message_id ?? null, thread: Number($("thread").value) || null,
  });
  reply(null);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("replying").lastElementChild.addEventListener("click", () => reply(null));
$("block").addEventListener("click", () => act("block", { user: openChat().chat.first_name, blocked: !openChat().blocked }));
$("open").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = event.target.elements.title;
  open = Number(await act("open", { kind: "private", title: field.value.trim() }));
  field.value = "";
});

follow((next) => {
  now = next;
  drawChats();
  drawChat();
});
