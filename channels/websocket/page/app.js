/** The page: ties what the user does to the client, and the client's state to what is shown. */
import { Client } from "./client.js";
import "./composer.js";
import { currentSession, goTo } from "./router.js";
import "./sidebar.js";
import { isRunning } from "./state.js";
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
};
const title = new TabTitle();
const client = new Client(changed);
let drawing = false;

/** Draw at most once per frame of the screen, however many tokens arrive in it. */
function changed(state, action) {
  title.render(state, action);
  if (action.type === "connection" && action.status === "denied") requestAnimationFrame(() => views.token.refused());
  if (drawing) return;
  drawing = true;
  if (document.hidden) setTimeout(draw, HIDDEN_TAB_MS);
  else requestAnimationFrame(draw);
}

function draw() {
  drawing = false;
  const { state } = client;
  const { current, threads, outbox, server } = state;
  views.sidebar.render(state);
  views.bar.render(state);
  views.thread.render({ session: current, thread: threads[current ?? ""], outbox });
  views.composer.render({ session: current, running: isRunning(state, current), commands: server.commands });
  views.token.render(state.connection);
  views.notice.hidden = state.notice === null;
  views.notice.firstElementChild.textContent = state.notice ?? "";
}

function send({ text, parts, audio }) {
  const session = client.send(text, parts, audio);
  views.thread.follow();
  if (session !== client.state.current) goTo(session);
}

function showAddress() {
  client.open(currentSession());
  if (matchMedia("(pointer: fine)").matches) views.composer.focusInput();
}

/** Escape also leaves dialogs and compositions; then it is not about the answer. */
function stopByKey(event) {
  if (event.isComposing || document.querySelector("dialog[open]")) return;
  if (isRunning(client.state, client.state.current)) client.stop();
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
  token: (token) => client.authenticate(token),
  notice: (text) => client.notify(text),
  delete: ({ id }) => client.remove(id).then(leaveRemoved),
  menu: (opener) => views.sidebar.toggle(true, opener),
};

for (const [name, deed] of Object.entries(deeds)) document.addEventListener(name, (event) => deed(event.detail));
addEventListener("hashchange", showAddress);
addEventListener("keydown", (event) => event.key === "Escape" && stopByKey(event));
views.notice.lastElementChild.addEventListener("click", () => client.notify(null));
find("#skip").addEventListener("click", (event) => {
  event.preventDefault();
  views.composer.focusInput();
});

showAddress();
client.start();
