/** The page: passes the user's actions to the client, and the client's state to the views. */
import { Client } from "./client.js";
import "./composer.js";
import { Replay } from "./replay.js";
import { currentSession, goTo } from "./router.js";
import "./sidebar.js";
import { isMissing, isRunning } from "./state.js";
import "./status_line.js";
import { keyName } from "./shortcuts.js";
import { TabTitle } from "./tab_title.js";
import "./thread_view.js";
import "./token_form.js";
import "./top_bar.js";

const HIDDEN_TAB_MS = 250;

const find = (selector) => document.querySelector(selector);
const views = {
  sidebar: find("tl-sidebar"),
  bar: find("tl-bar"),
  thread: find("tl-thread"),
  composer: find("tl-composer"),
  token: find("tl-token"),
  notice: find("#notice"),
  status: find("tl-status"),
};
const title = new TabTitle();
const client = new Client(changed);
let drawing = false;
/** The running replay, and the conversation as it shows it. */
let replay = null;
let replayed = null;

/** Draw at most once per animation frame, regardless of how many tokens arrive in it. */
function changed(state, action) {
  title.render(state, action);
  if (drawing) return;
  drawing = true;
  if (document.hidden) setTimeout(draw, HIDDEN_TAB_MS);
  else requestAnimationFrame(draw);
}

function draw() {
  drawing = false;
  const { state } = client;
  const { current, threads, outbox, server, contributed, completions } = state;
  views.sidebar.render(state);
  views.bar.render(state, replay !== null);
  if (replay === null) views.thread.render({ session: current, thread: threads[current ?? ""], outbox });
  else if (replayed !== null) views.thread.render({ session: current, thread: replayed, outbox: [] });
  views.composer.hidden = isMissing(state, current) || replay !== null;
  const { triggers, status } = contributed;
  views.composer.render({ session: current, running: isRunning(state, current), commands: server.commands, triggers, completions });
  views.status.render(status);
  views.token.render(state.connection);
  views.notice.hidden = state.notice === null;
  views.notice.firstElementChild.textContent = state.notice ?? "";
}

function send({ text, parts, audio }) {
  const session = client.send(text, parts, audio);
  views.thread.follow();
  if (session !== client.state.current) goTo(session);
}

/** Start or end the replay of the open conversation. Events that arrive during it are shown afterwards. */
function toggleReplay() {
  if (replay !== null) {
    replay.stop();
    return;
  }
  replay = new Replay(client.state.threads[client.state.current], (thread) => {
    replayed = thread;
    if (thread === null) replay = null;
    changed(client.state, { type: "replay" });
  });
  changed(client.state, { type: "replay" });
}

function showAddress() {
  replay?.stop();
  client.open(currentSession());
  if (matchMedia("(pointer: fine)").matches) views.composer.focusInput();
}

/** Escape stops the answer, unless it closes a dialog or ends an input composition. */
function stopByKey(event) {
  if (event.isComposing || document.querySelector("dialog[open]")) return;
  if (isRunning(client.state, client.state.current)) client.stop();
}

/** Keys of plugins have priority over those of the page and its fields. */
function pressed(event) {
  const key = keyName(event);
  if (event.isComposing || !client.state.contributed.shortcuts.includes(key)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  client.press(key);
}

function leaveRemoved() {
  if (client.state.current === null && currentSession() !== null) goTo(null);
}

const deeds = {
  send: send,
  stop: () => client.stop(),
  decide: ({ id, decision }) => client.decide(id, decision),
  retry: (entry) => client.retry(entry),
  discard: (entry) => client.discard(entry.client_msg_id),
  "ask-again": (answer) => answer && client.askAgain(answer),
  token: (token) => client.authenticate(token).then((refusal) => refusal && views.token.refused(refusal)),
  notice: (text) => client.notify(text),
  delete: ({ id }) => client.remove(id).then(leaveRemoved),
  mention: (question) => client.complete(question),
  replay: toggleReplay,
  menu: (opener) => views.sidebar.toggle(true, opener),
};

for (const [name, deed] of Object.entries(deeds)) document.addEventListener(name, (event) => deed(event.detail));
addEventListener("hashchange", showAddress);
addEventListener("keydown", pressed, { capture: true });
addEventListener("keydown", (event) => event.key === "Escape" && stopByKey(event));
views.notice.lastElementChild.addEventListener("click", () => client.notify(null));
find("#skip").addEventListener("click", (event) => {
  event.preventDefault();
  views.composer.focusInput();
});

showAddress();
client.start();
