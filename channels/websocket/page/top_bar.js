/**
 * `<tl-bar>`: title, agent, model and cost of the session, state of the connection, replay, the theme switch and a
 * menu. Sends `menu`, `replay` and `pick` {id, change}.
 */
import { h } from "/shared/dom.js";
import { exportEntries } from "./export_menu.js";
import { usageLine } from "/shared/figures.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";
import { openPicker } from "./model_picker.js";
import { openShareDialog } from "./share_dialog.js";
import { canReplay, modelOf, sessionInfo, titleOf } from "./state.js";
import { isDark, toggleTheme } from "/shared/theme.js";

const CONNECTION = {
  connecting: t("bar.connecting"),
  online: t("bar.online"),
  waiting: t("bar.waiting"),
  denied: t("bar.denied"),
};

export class TopBar extends HTMLElement {
  #title = h("h1");
  #usage = h("span", { class: "usage", title: t("bar.usage") });
  #agent = h("span", { class: "agent" });
  #model = h("span", { class: "model" });
  #picker = h("button", { type: "button", class: "quiet picker", "aria-haspopup": "dialog" }, this.#agent, this.#model, icon("chevron_down"));
  #connection = h("span", { class: "connection", role: "status" }, h("i", { "aria-hidden": "true" }), h("span"));
  #theme = h("button", { type: "button", class: "round quiet" });
  #actions = h("button", { type: "button", class: "round quiet", "aria-label": t("bar.actions"), title: t("bar.actions"), "aria-haspopup": "menu", "aria-expanded": "false", hidden: true }, icon("more"));
  #state = null;
  #replay = h("button", { type: "button", class: "round quiet", hidden: true });

  connectedCallback() {
    if (this.firstChild) return;
    const menu = h("button", { type: "button", class: "round quiet menu", "aria-label": t("list.conversations"), "aria-controls": "sessions" }, icon("menu"));
    menu.addEventListener("click", () => this.dispatchEvent(new CustomEvent("menu", { bubbles: true, detail: menu })));
    this.#theme.addEventListener("click", toggleTheme);
    document.addEventListener("theme", () => this.#showTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#showTheme());
    this.#replay.addEventListener("click", () => this.dispatchEvent(new CustomEvent("replay", { bubbles: true })));
    this.#showTheme();
    const facts = h("div", { class: "facts" }, this.#usage, this.#connection);
    const heading = h("div", { class: "heading" }, this.#title, this.#picker);
    this.#picker.addEventListener("click", () => this.#pick());
    this.append(h("header", {}, menu, heading, facts, this.#replay, this.#theme, this.#actions));
    this.#actions.addEventListener("click", () => this.#openMenu());
  }

  #pick() {
    const { current } = this.#state;
    const now = { model: modelOf(this.#state, current), agent: sessionInfo(this.#state, current)?.agent ?? "main" };
    const change = (change) => this.dispatchEvent(new CustomEvent("pick", { bubbles: true, detail: { id: current, change } }));
    openPicker(now, change);
  }

  #openMenu() {
    const { current } = this.#state;
    openMenu(this.#actions, [
      { label: t("share.menu"), icon: "share", act: () => openShareDialog(current, titleOf(this.#state, current)) },
      ...exportEntries(current, this.#state.branches[current]),
    ]);
  }

  /** @param {import("./state.js").State} state @param {boolean} replaying */
  render(state, replaying) {
    this.#state = state;
    const info = sessionInfo(state, state.current);
    this.#actions.hidden = info === undefined;
    this.#title.textContent = state.current === null ? t("list.new") : titleOf(state, state.current);
    this.#usage.textContent = usageLine(info?.usage ?? {});
    const model = modelOf(state, state.current);
    const agent = info?.agent ?? "main";
    this.#model.textContent = model;
    this.#agent.textContent = agent === "main" ? "" : `${agent} · `;
    this.#picker.title = t("picker.open", { agent, model });
    this.#picker.setAttribute("aria-label", this.#picker.title);
    this.#showConnection(state.connection);
    this.#showReplay(replaying, replaying || canReplay(state));
  }

  #showReplay(replaying, offered) {
    const label = replaying ? t("bar.replay_stop") : t("bar.replay");
    this.#replay.hidden = !offered;
    if (this.#replay.title === label) return;
    this.#replay.replaceChildren(icon(replaying ? "stop" : "play"));
    this.#replay.setAttribute("aria-label", label);
    this.#replay.title = label;
  }

  #showConnection(connection) {
    if (this.#connection.dataset.state === connection) return;
    this.#connection.dataset.state = connection;
    this.#connection.title = CONNECTION[connection];
    this.#connection.lastChild.textContent = CONNECTION[connection];
  }

  #showTheme() {
    const label = isDark() ? t("bar.light") : t("bar.dark");
    this.#theme.replaceChildren(icon(isDark() ? "sun" : "moon"));
    this.#theme.setAttribute("aria-label", label);
    this.#theme.title = label;
  }
}

customElements.define("tl-bar", TopBar);
