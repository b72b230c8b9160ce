/** Page of the fake: shows a chat, follows its changes, and acts as any of its users. */

import { act as send, follow, onRefusal } from "/_fake/page/fake.js";
import { callsView } from "/_fake/page/calls.js";
import { button, make, messageItem } from "/_fake/page/message.js";

const at = (id) => document.getElementById(id);
const state = { teams: [], failures: 0, drawn: "", room: null, thread: null };

onRefusal((text) => (at("notice").textContent = text));

/** Perform an act in the open chat as the chosen user. */
const act = (name, given) => send(name, { chat: state.room, user: at("user").value, ...given });

async function drawCalls() {
  const answer = await fetch("/_fake/transcript?most=200");
  at("calls").replaceChildren(...callsView(await answer.json()));
}

function here() {
  const rooms = state.teams.flatMap((team) => team.rooms.map((room) => ({ team, room })));
  return rooms.find(({ room }) => room.id === state.room) ?? rooms[0];
}

function enter(room) {
  state.room = room;
  leaveThread();
  render();
  at("text").focus();
}

function leaveThread() {
  state.thread = null;
  at("thread").hidden = true;
}

function reply(message) {
  state.thread = message.thread ?? message.ts;
  at("thread").hidden = false;
  at("thread").firstElementChild.textContent = `Replying in the thread of “${message.text.slice(0, 60)}”.`;
  at("text").focus();
}

function roomName(team, room) {
  if (room.kind !== "im") return `${room.kind === "channel" ? "#" : "🔒"} ${room.name}`;
  return room.members.find((name) => name !== team.bot) ?? "?";
}

function roomList() {
  return state.teams.flatMap((team) => {
    const list = make("ul");
    for (const room of team.rooms) {
      const entry = button(roomName(team, room), [], () => enter(room.id));
      entry.setAttribute("aria-current", String(room.id === state.room));
      const item = make("li");
      item.append(entry);
      list.append(item);
    }
    const direct = make("li");
    const open = () => act("open", { chat: `@${at("user").value}`, team: team.id, user: undefined });
    direct.append(button("✉ direct message", [], open));
    list.append(direct);
    return [make("h2", [], team.name), list];
  });
}

/** Return the messages with the replies below the root of their thread. */
function threaded(messages) {
  const roots = messages.filter((message) => !message.thread);
  const orphans = messages.filter((m) => m.thread && !roots.some((root) => root.ts === m.thread));
  return [...roots, ...orphans].flatMap((root) => [
    root,
    ...messages.filter((message) => message.thread === root.ts),
  ]);
}

function messageList(team, room) {
  const name = (id) => team.names[id] ?? id;
  const items = threaded(room.messages).map((message) => messageItem(message, { act, reply, name }));
  const roots = new Set([...Object.keys(room.status), ...Object.keys(room.sessions)]);
  for (const root of roots) items.push(...atWork(team, room, root));
  if (!items.length) items.push(make("li", ["empty"], "No messages yet."));
  return items;
}

function atWork(team, room, root) {
  const processing = room.sessions[root]?.status === "processing";
  const status = room.status[root];
  if (!processing && !status) return [];
  const line = make("li", ["at-work"], `${team.bot ?? "the app"} ${status ?? "is at work…"}`);
  if (processing) line.append(button("Stop", ["danger"], () => act("stop", { thread: root })));
  return [line];
}

/** Redraw only after a change, so that a button is not replaced while a user clicks it. */
function render() {
  const found = here();
  const drawn = JSON.stringify([found?.room.id, state.teams]);
  if (!found || drawn === state.drawn) return;
  state.drawn = drawn;
  const { team, room } = found;
  state.room = room.id;
  at("rooms").replaceChildren(...roomList());
  at("title").textContent = roomName(team, room);
  at("about").textContent = `${room.members.join(", ")}${team.bot ? "" : " · the app is not installed"}`;
  at("users").replaceChildren(...team.users.map((name) => new Option(name)));
  const list = at("messages");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  list.replaceChildren(...messageList(team, room));
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function write(event) {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || !state.room) return;
  at("text").value = "";
  if (text.startsWith("/")) act("command", { text });
  else act("say", { text, thread: state.thread });
}

at("composer").addEventListener("submit", write);
at("leave").addEventListener("click", leaveThread);
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) write(event);
});
at("toggle").addEventListener("click", async () => {
  const calls = at("calls");
  calls.hidden = !calls.hidden;
  at("toggle").setAttribute("aria-expanded", String(!calls.hidden));
  if (!calls.hidden) await drawCalls();
});
follow(async (next) => {
  const known = state.failures;
  Object.assign(state, next);
  render();
  if (state.failures > known) at("notice").textContent = `The app failed: ${state.failure}`;
  if (!at("calls").hidden) await drawCalls();
});
