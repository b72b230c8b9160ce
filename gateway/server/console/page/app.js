/** The console: asks who the user is, then shows the screen of the address in the frame. */
import { h } from "/shared/dom.js";
import { endLogin, finishEnding } from "/shared/ending.js";
import { addStrings, language, t } from "/shared/language.js";
import { emptyState, failedState } from "/shared/states.js";
import { Frame } from "./frame.js";
import { listenToKeys, openOverview, setScreenKeys } from "./keys.js";
import { addressOf, currentParams, goTo, watchAddress } from "./router.js";
import { SCREENS } from "./screens.js";
import { endSession, readSession, showLogin, signsOut } from "./session.js";

/**
 * What a screen gets beside its host and params.
 * @typedef {object} Context
 * @property {import("./session.js").Session} session
 * @property {boolean} isAdmin whether the user may change things
 * @property {(keys: import("./keys.js").Keys) => void} keys set the keyboard shortcuts of the screen
 * @property {(name: string, count: number, lamp?: boolean) => void} setCount of a screen in the sidebar
 * @property {(state: "live" | "lost" | "", detail?: string) => void} setLive
 * @property {(text: string) => void} notify show an error above the screen
 * @property {(screen: string, path?: string[], query?: Record<string, string>) => void} open another screen
 * @property {(query: Record<string, string>, path?: string[]) => void} setQuery replace the filters in the address
 * @property {(name: string) => boolean} has whether a screen exists for this role
 */

// All three are requested at once, after the end of a login that waits for the gateway. Modules read strings only once the console has started.
let early = finishEnding("console", endSession)
  .then(() => finishEnding("console.all", () => endSession(true)))
  .then(readSession)
  .catch(() => undefined);
(SCREENS.find(({ name }) => name === currentParams().screen) ?? SCREENS[0]).load().catch(() => {});
const { [language]: strings } = language === "de" ? await import("./strings_de.js") : await import("./strings_en.js");
addStrings({ [language]: strings });
const [frameHost, loginHost] = [document.getElementById("frame"), document.getElementById("login")];
document.getElementById("skip").textContent = t("frame.skip");

/** @type {Frame | null} */
let frame = null;
/** @type {{name: string, shown: import("./screens.js").Shown} | null} */
let open = null;
/** @type {import("./session.js").Session} */
let session = { account: "", role: "admin", reads_messages: true, open: false };
let screens = [];
/** The stream of what waits, while a screen is shown that does not read it. @type {{close: () => void} | null} */
let stream = null;
/** Dialogs that were open when a login expired, and whose they are. */
let unfinished = { user: "", dialogs: [] };

async function start() {
  let found;
  try {
    found = await early;
    early = undefined;
    if (found === undefined) found = await readSession();
  } catch (error) {
    frameHost.hidden = true;
    loginHost.hidden = false;
    return loginHost.replaceChildren(h("main", {}, failedState({ text: error.message, again: start })));
  }
  if (found === null) return login();
  session = found;
  loginHost.hidden = true;
  loginHost.replaceChildren();
  screens = SCREENS.filter((screen) => screen.roles.includes(session.role));
  frameHost.hidden = false;
  frame = new Frame(frameHost, screens, session, actions());
  show({ replace: true });
  reopen();
}

/** Ask who the user is. @param {boolean} [expired] whether what was written in a dialog is kept for the same user */
function login(expired = false) {
  if (loginHost.querySelector("form")) return;
  const dialogs = document.querySelectorAll("dialog");
  unfinished = { user: userOf(session), dialogs: expired ? [...dialogs] : [] };
  close();
  frame = null;
  frameHost.hidden = true;
  frameHost.replaceChildren();
  for (const dialog of dialogs) dialog.remove();
  loginHost.hidden = false;
  document.title = `${t("login.title")} · Trunkline`;
  showLogin(loginHost, start);
}

function reopen() {
  const { user, dialogs } = unfinished;
  unfinished = { user: "", dialogs: [] };
  if (user !== userOf(session)) return;
  for (const dialog of dialogs) {
    dialog.open = false;
    document.body.append(dialog);
    dialog.showModal();
    // The screen that opened it is gone.
    dialog.addEventListener("close", () => (close(), show({ replace: true })));
  }
}

function userOf({ account, role }) {
  return `${role} ${account}`;
}

/** Actions of the account menu. Without a token in the settings there is nothing to sign out of. */
function actions() {
  if (session.open) return [];
  return [
    { label: t("frame.sign_out"), icon: "leave", act: () => leave(false) },
    { label: t("login.end_all"), icon: "cross", act: () => leave(true) },
  ];
}

async function leave(everywhere) {
  if (!(await signsOut(everywhere))) return;
  try {
    await endLogin(everywhere ? "console.all" : "console", () => endSession(everywhere), () => (close(), (frame = null)));
    if (frame) login();
    else location.reload();
  } catch (error) {
    frame?.notify(error.message);
  }
}

/** @param {{replace: boolean}} how `replace` keeps the focus: only filters changed */
function show({ replace }) {
  if (!frame) return;
  const params = currentParams();
  if (params.screen === "" && screens.length > 0) return goTo(addressOf(screens[0].name), { replace: true });
  if (open?.name === params.screen && open.shown.update) return open.shown.update(params);
  close();
  frame.notify("");
  frame.setLive("");
  frame.select(params.screen);
  const host = h("div", { class: "screen" });
  frame.main.replaceChildren(host);
  scrollTo(0, 0);
  const screen = screens.find((one) => one.name === params.screen);
  document.title = `${screen?.title() ?? t("frame.no_screen")} · Trunkline`;
  if (!screen) return host.append(h("h1", { class: "offscreen" }, t("frame.no_screen")), emptyState({ icon: "search", title: t("frame.no_screen"), text: t("frame.no_screen_text") }));
  open = { name: screen.name, shown: screen.render(host, params, contextOf(screen)) };
  follow();
  if (!replace) host.querySelector("h1")?.focus({ preventScroll: true });
}

/** Show in the sidebar what waits, as it changes; the screen Now does so itself, and a hidden page needs nothing. */
async function follow() {
  const { NowStream } = await import("./now_stream.js").catch(() => ({}));
  const wanted = NowStream && frame && open && open.name !== "now" && !document.hidden;
  if (wanted) stream ??= new NowStream(count);
  else unfollow();
}

function unfollow() {
  stream?.close();
  stream = null;
}

function count(state) {
  if (state === null) return;
  const { asked, queues } = state;
  // A screen that shows its number keeps it up to date.
  if (open?.name !== "waiting") frame?.setCount("waiting", asked.questions + asked.pairings, true);
  if (open?.name !== "dead") frame?.setCount("dead", queues.dead_letters, false);
}

function close() {
  unfollow();
  open?.shown.dispose();
  open = null;
  setScreenKeys({});
}

/** @returns {Context} */
function contextOf(screen) {
  return {
    session,
    isAdmin: session.role === "admin",
    keys: setScreenKeys,
    setCount: (name, count, lamp = false) => frame?.setCount(name, count, lamp),
    setLive: (state, detail) => frame?.setLive(state, detail),
    notify: (text) => frame?.notify(text),
    open: (name, path, query) => goTo(addressOf(name, path, query)),
    setQuery: (query, path = currentParams().path) => goTo(addressOf(screen.name, path, query), { replace: true }),
    has: (name) => screens.some((one) => one.name === name),
  };
}

listenToKeys({
  "ctrl+k": { label: t("keys.search"), act: () => frame?.focusSearch() },
  "?": { label: t("keys.overview"), act: () => frame && openOverview() },
});
watchAddress(show);
document.addEventListener("visibilitychange", follow);
addEventListener("signed-out", () => login(true));
start();
