/** The page: a list of chats, the open chat, and buttons that inject faults. */

import { find, h } from "/_fake/page/dom.js";
import { act, follow, onRefusal } from "/_fake/page/fake.js";
import { messageElement } from "/_fake/page/message.js";

const TROUBLE = [
  ["cut connections", "sever", {}],
  ["make zombies", "freeze", {}],
  ["ask to reconnect", "ask_reconnect", {}],
  ["forget sessions", "invalidate", {}],
  ["next message: 429", "slow_down", { method: "POST /channels/{channel_id}/messages", seconds: 3 }],
  ["an hour passes", "advance", { seconds: 3600 }],
];

let state = null;
let answering = null;
let wanted = location.hash.slice(1);
const shown = new Map();

const user = () => find("#say [name=user]").value.trim() || "ada";
/** Return the open chat: the selected one, or the first until that is known. */
const room = () => state.rooms.find((one) => one.id === wanted) ?? state.rooms[0];

onRefusal((text) => {
  const notice = find("#notice");
  notice.textContent = text;
  notice.hidden = !text;
  clearTimeout(notice.timer);
  notice.timer = setTimeout(() => (notice.hidden = true), 5000);
});

function show(next) {
  state = next;
  const list = find("#messages");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40 || shown.room !== room().id;
  showRooms();
  showMessages(list);
  find("#bots").textContent = state.bots ? "a bot is connected" : "no bot is connected";
  find("#bots").className = state.bots ? "on" : "";
  showProblems();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function showProblems() {
  const count = state.problems.length;
  find("#problems").hidden = !count;
  find("#problems summary").textContent = count === 1 ? "The bot did something wrong" : `The bot did ${count} things wrong`;
  find("#problems ol").replaceChildren(...state.problems.slice(-20).map((text) => h("li", {}, text)));
}

function showRooms() {
  const tops = state.rooms.filter((one) => !one.thread_metadata);
  const link = (one, inside) =>
    h("a", { href: `#${one.id}`, class: inside ? "thread" : "", "aria-current": one.id === room().id ? "page" : false }, `${one.type === 0 ? "# " : inside ? "↳ " : ""}${one.title}`);
  const threads = (one) => state.rooms.filter((inner) => inner.parent_id === one.id).map((inner) => link(inner, true));
  find("#rooms").replaceChildren(...tops.flatMap((one) => [link(one, false), ...threads(one)]));
}

function showMessages(list) {
  const current = room();
  find("#title").textContent = current.title;
  find("#topic").textContent = current.thread_metadata?.archived ? "archived" : (current.topic ?? "");
  find("#typing").textContent = current.bot_types ? `${state.bot.username} is typing …` : "";
  const names = new Map(state.people.map((one) => [one.id, one.username]));
  const place = { room: current, names, user, answer, bot: state.bot };
  const elements = current.messages.map((said) => {
    const text = JSON.stringify([said.content, said.flags, said.versions, said.components, said.embeds, said.reactions, said.referenced_message?.content]);
    const held = shown.get(said.id);
    if (held?.text === text && held.room === current.id) return held.element;
    const element = messageElement(said, place);
    shown.set(said.id, { text, element, room: current.id });
    return element;
  });
  list.replaceChildren(...elements);
  shown.room = current.id;
}

function answer(said) {
  answering = said;
  find("#answering").hidden = said === null;
  find("#answering span").textContent = said ? `an answer to ${said.author.username}` : "";
  if (said) find("#say textarea").focus();
}

async function say(event) {
  event.preventDefault();
  const box = find("#say textarea");
  const text = box.value;
  const files = Array.from(find("#say [name=file]").files);
  if (!text.trim() && !files.length) return;
  box.value = "";
  const done = text.startsWith("/") ? await command(text) : await message(text, files);
  if (done === undefined) box.value = text;
  else find("#say").reset();
  answer(null);
}

/** Return a file as base64, for the control interface. */
async function packed(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

async function message(text, files) {
  const attach = Object.fromEntries(await Promise.all(files.map(async (file) => [file.name, await packed(file)])));
  const spoken = text.replaceAll(`@${state.bot.username}`, `<@${state.bot.id}>`);
  return act("say", { chat: room().id, text: spoken, user: user(), attach, reply_to: answering?.id ?? null });
}

/** Run `/ask why is it so`: the first word is the command, the rest the value of its first option. */
async function command(text) {
  const [name, ...rest] = text.slice(1).split(" ");
  const found = state.commands.find((one) => one.name === name && one.kind === 1);
  const first = found?.options?.[0];
  const options = first && rest.length ? { [first.name]: rest.join(" ") } : {};
  return act("slash", { chat: room().id, command: name, options, user: user() });
}

find("#say").addEventListener("submit", say);
find("#say textarea").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) say(event);
});
find("#answering button").addEventListener("click", () => answer(null));
find("#dm").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = event.target.user.value.trim();
  const key = await act("dm", { user: name });
  event.target.reset();
  if (key) {
    find("#say [name=user]").value = name;
    location.hash = key;
  }
});
find("#trouble").append(...TROUBLE.map(([label, name, given]) => h("button", { type: "button", onclick: () => act(name, given) }, label)));
addEventListener("hashchange", () => {
  wanted = location.hash.slice(1);
  answer(null);
  if (state) show(state);
});
follow(show);
