/** One row of the list of conversations: a link with title and time, and a button for the menu. */
import { fullTime, shortTime } from "/shared/dates.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { linkTo } from "./router.js";
import { isAsking, isElsewhere, isRunning, titleOf } from "./state.js";

const CHANNELS = { telegram: "TG", discord: "DC", slack: "SL", matrix: "MX", email: "EM", websocket: "WB", api: "AP" };

/**
 * Draw a row again if its look changed.
 * @param {HTMLElement} row @param {import("./state.js").SessionInfo} info @param {import("./state.js").State} state
 * @param {{renaming: boolean, onMenu: (opener: HTMLElement) => void, onRename: (title: string | null) => void}} props
 */
export function renderRow(row, info, state, { renaming, onMenu, onRename }) {
  const title = info.title || titleOf(state, info.id);
  // The events of a conversation that is open are newer than the list.
  const running = isRunning(state, info.id) || (!state.threads[info.id]?.loaded && info.status === "running");
  const asking = isAsking(state, info.id) || info.status === "waiting";
  const look = JSON.stringify([title, info.channel, running, asking, info.id === state.current, shortTime(info.updated_at), renaming]);
  if (row.dataset.look === look) return;
  const hadFocus = row.contains(document.activeElement);
  row.dataset.look = look;
  if (renaming) return row.replaceChildren(titleForm(title, onRename));
  const note = asking ? t("list.waits") : running ? t("list.answering") : "";
  const link = h(
    "a",
    { href: linkTo(info.id), "aria-current": info.id === state.current && "page" },
    note && h("i", { class: asking ? "dot asks" : "dot", title: note }, h("span", { class: "offscreen" }, `${note} `)),
    isElsewhere(state, info) && channelMark(info.channel),
    h("span", { class: "title", title: info.parent ? `${title}\n${t("list.fork")}` : title }, title),
    h("time", { title: fullTime(info.updated_at) }, shortTime(info.updated_at)),
  );
  const name = t("list.actions", { title });
  const menu = h("button", { type: "button", class: "quiet", "aria-label": name, title: name, "aria-haspopup": "menu", "aria-expanded": "false" }, icon("more"));
  menu.addEventListener("click", () => onMenu(menu));
  row.replaceChildren(link, menu);
  if (hadFocus) link.focus();
}

/** Form that renames in place: Enter and leaving it store the title, Escape does not. */
function titleForm(title, onRename) {
  const input = h("input", { "aria-label": t("list.title"), value: title, maxlength: 100, autocomplete: "off" });
  let done = false;
  const end = (text) => {
    if (done) return;
    done = true;
    onRename(text && text !== title ? text : null);
  };
  const form = h("form", {}, input);
  form.addEventListener("submit", (event) => (event.preventDefault(), end(input.value.trim())));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") end(null);
  });
  input.addEventListener("blur", () => end(input.value.trim()));
  queueMicrotask(() => (input.focus(), input.select()));
  return form;
}

/** Channel badge: two visible letters, and the full name for screen readers. */
function channelMark(channel) {
  const [platform] = channel.split(".");
  const letters = CHANNELS[platform] ?? platform.slice(0, 2).toUpperCase();
  return h("span", { class: "channel", title: channel }, h("span", { "aria-hidden": "true" }, letters), h("span", { class: "offscreen" }, `${channel}: `));
}
