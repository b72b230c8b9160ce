/** The page: passes the user's actions to the client, and the client's state to the views. */
import "./strings.js";
import { Client } from "./client.js";
import "./composer.js";
import { t } from "/shared/language.js";
import { openShortcuts } from "./late.js";
import "./plugin_panels.js";
import { currentMessage, currentSession, goTo } from "./router.js";
import "./sidebar.js";
import { branchOf, isMissing, isRunning, isTask } from "./state.js";
import { signOut, watchSignOut } from "./sign_out.js";
import "./status_line.js";
import { keyName } from "./shortcuts.js";
import { TabTitle } from "./tab_title.js";
import { shownOf } from "./thread_state.js";
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
  panels: find("tl-panels"),
};
const title = new TabTitle();
const client = new Client(changed);
let drawing = false;
/** Whether the message field is to be focused with the next drawing that shows it. */
let wantsFocus = false;
/** The running replay, and the conversation as it shows it. */
let replay = null;
let replayed = null;
/** The message to scroll to, and whether it was requested because it is older than those that are loaded. */
let target = null;
let requested = false;

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
  const { triggers, status, panels } = contributed;
  views.sidebar.render(state);
  views.bar.render(state, replay !== null);
  // Before the messages: the text of an edit whose message is gone belongs to the draft of the version that came.
  views.composer.render({ session: current, branch: branchOf(state, current), running: isRunning(state, current), online: state.connection === "online", uploadBytes: server.upload_bytes, frameBytes: server.frame_bytes, commands: server.commands, triggers, completions });
  if (replay === null) views.thread.render({ session: current, thread: shownOf(threads[current ?? ""]), outbox, branches: state.branches[current ?? ""] });
  else if (replayed !== null) views.thread.render({ session: current, thread: replayed, outbox: [] });
  if (target !== null && replay === null) showTarget(threads[current ?? ""]);
  for (const log of document.querySelectorAll("tl-task[data-session]")) log.render(threads[log.dataset.session]);
  const isGone = isMissing(state, current);
  views.composer.hidden = isGone || isTask(current) || replay !== null;
  if (wantsFocus && !views.composer.hidden) wantsFocus = false, views.composer.focusInput();
  if (isGone && views.composer.moveToNew()) client.notify(t("missing.draft"));
  views.status.render(status);
  views.panels.render(panels);
  views.token.render(state.connection);
  views.notice.hidden = state.notice === null;
  views.notice.firstElementChild.textContent = state.notice ?? "";
}

/** Scroll to the message of the address. If it is older than what is loaded, request it once; the server's refusal is a notice. */
function showTarget(thread) {
  if (!thread?.loaded) return;
  if (target in thread.messages) {
    views.thread.reveal(target);
    target = null;
  } else requested ||= client.showMessage(target);
}

function send({ text, uploads }) {
  const session = client.send(text, uploads);
  target = null;
  views.thread.follow();
  if (session !== client.state.current) goTo(session);
}

async function edit({ id, text, refused }) {
  const { current } = client.state;
  if (!(await client.edit(id, text))) refused(current);
}

/** Start or end the replay of the open conversation. Events that arrive during it are shown afterwards. */
async function toggleReplay() {
  if (replay !== null) return replay.stop();
  const { current } = client.state;
  const module = await import("./replay.js").catch(() => client.notify(t("late.failed")));
  if (!module || replay !== null || client.state.current !== current) return;
  replay = new module.Replay(client.state.threads[client.state.current], (thread) => {
    replayed = thread;
    if (thread === null) replay = null;
    changed(client.state, { type: "replay" });
  });
  changed(client.state, { type: "replay" });
}

function showAddress() {
  replay?.stop();
  target = currentMessage();
  requested = false;
  client.open(currentSession());
  // A field that is hidden gets the focus when it is shown.
  wantsFocus = matchMedia("(pointer: fine)").matches;
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

/** Keys of the page; those without a modifier count only outside of fields. */
const SHORTCUTS = {
  "ctrl+k": () => views.sidebar.focusSearch(),
  "meta+k": () => views.sidebar.focusSearch(),
  "ctrl+shift+o": () => (goTo(null), views.composer.focusInput()),
  "?": openShortcuts,
  "[": () => views.thread.showVersion(-1),
  "]": () => views.thread.showVersion(1),
  "/": () => views.composer.type("/"),
  f2: () => views.sidebar.renameCurrent(),
};

function pressedShortcut(event) {
  const key = keyName(event);
  if (!(key in SHORTCUTS) || event.isComposing || event.defaultPrevented || document.querySelector("dialog[open], tl-token:not([hidden])")) return;
  if (key.length === 1 && event.target.closest?.("input, textarea, select")) return;
  event.preventDefault();
  SHORTCUTS[key]();
}

function leaveRemoved() {
  if (client.state.current === null && currentSession() !== null) goTo(null);
}

/** Select the agent or model of a session. A new chat has no session yet: it begins with the command. */
function pick(id, change) {
  if (client.state.sessions.some((info) => info.id === id)) client.change(id, change);
  else for (const [kind, name] of Object.entries(change)) if (name !== null) send({ text: `/${kind} ${name}`, uploads: [] });
}

const deeds = {
  send: send,
  stop: () => client.stop(),
  "sign-out": () => signOut(client.state.outbox.length, () => client.disconnect()),
  decide: ({ id, decision }) => client.decide(id, decision),
  retry: (entry) => client.retry(entry),
  discard: (entry) => client.discard(entry.client_msg_id),
  "ask-again": (answer) => answer && client.askAgain(answer),
  token: (token) => client.authenticate(token).then((refusal) => refusal && views.token.refused(refusal)),
  denied: () => client.denied(),
  notice: (text) => client.notify(text),
  delete: ({ id }) => client.remove(id).then(leaveRemoved),
  rename: ({ id, title }) => client.change(id, { title }),
  pin: ({ id, pinned }) => client.change(id, { pinned }),
  pick: ({ id, change }) => pick(id, change),
  scope: (scope) => client.show(scope),
  more: () => client.moreSessions(),
  mention: (question) => client.complete(question),
  replay: toggleReplay,
  reload: () => client.refreshSessions(),
  why: (answer) => answer && (client.askWhy(answer), views.thread.follow()),
  fork: (message) => client.fork(message).then((session) => session && goTo(session)),
  edit: edit,
  compose: () => views.composer.focusInput(),
  unsent: ({ session, text }) => (views.composer.add(session, text), client.notify(t("edit.moved"))),
  regenerate: (answer) => client.regenerate(answer),
  version: (id) => client.switchTo(id),
  earlier: (inGap) => client.fetchEarlier(inGap),
  "edit-last": () => views.thread.editLast(),
  watch: (log) => client.watch(log),
  menu: (opener) => views.sidebar.toggle(true, opener),
};

for (const [name, deed] of Object.entries(deeds)) document.addEventListener(name, (event) => deed(event.detail));
addEventListener("hashchange", showAddress);
addEventListener("keydown", pressed, { capture: true });
addEventListener("keydown", (event) => event.key === "Escape" && stopByKey(event));
addEventListener("keydown", pressedShortcut);
views.notice.lastElementChild.addEventListener("click", () => client.notify(null));
find("#skip").textContent = t("page.skip");
views.notice.lastElementChild.textContent = t("page.dismiss");
views.panels.setAttribute("aria-label", t("page.panels"));
find("#skip").addEventListener("click", (event) => {
  event.preventDefault();
  views.composer.focusInput();
});

await watchSignOut();
showAddress();
client.start();
