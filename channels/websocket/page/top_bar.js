/**
 * `<tl-bar>`: title, agent, model and cost of the session, state of the connection, Share, Export, the theme switch and a menu.
 * Sends `menu`, `replay` and `pick` {id, change}.
 */
import { h } from "/shared/dom.js";
import { usageLine } from "/shared/figures.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";
import { openExport, openPicker, openShareDialog } from "./late.js";
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
  #picker = h("button", { type: "button", class: "quiet picker", "aria-haspopup": "dialog" }, icon("robot"), this.#agent, this.#model, icon("chevron_down"));
  #connection = h("span", { class: "connection", role: "status" }, h("i", { "aria-hidden": "true" }), h("span"));
  #theme = h("button", { type: "button", class: "round quiet theme" });
  #actions = h("button", { type: "button", class: "round quiet", "aria-label": t("bar.actions"), title: t("bar.actions"), "aria-haspopup": "menu", "aria-expanded": "false", hidden: true }, icon("more"));
  #state = null;
  #share = action("share", t("share.menu"), () => openShareDialog(this.#state.current, titleOf(this.#state, this.#state.current)));
  #export = action("download", t("export.menu"), () => openExport(this.#state.current, this.#state.branches[this.#state.current]));
  /** The button that ends a running replay. */
  #replay = action("stop", t("bar.replay_stop"), () => this.#toggleReplay());

  connectedCallback() {
    const menu = h("button", { type: "button", class: "round quiet menu", "aria-label": t("list.conversations"), "aria-controls": "sessions" }, icon("menu"));
    menu.addEventListener("click", () => this.dispatchEvent(new CustomEvent("menu", { bubbles: true, detail: menu })));
    this.#theme.addEventListener("click", toggleTheme);
    document.addEventListener("theme", () => this.#showTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#showTheme());
    this.#showTheme();
    const facts = h("div", { class: "facts" }, this.#usage, this.#connection);
    const heading = h("div", { class: "heading" }, this.#title, this.#picker);
    this.#picker.addEventListener("click", () => this.#pick());
    this.replaceChildren(h("header", {}, menu, heading, facts, this.#replay, this.#share, this.#export, this.#theme, this.#actions));
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
      { label: t("export.menu"), icon: "download", act: () => openExport(current, this.#state.branches[current]) },
      ...(canReplay(this.#state) ? [{ label: t("bar.replay"), icon: "play", act: () => this.#toggleReplay() }] : []),
    ]);
  }

  #toggleReplay() {
    this.dispatchEvent(new CustomEvent("replay", { bubbles: true }));
  }

  /** @param {import("./state.js").State} state @param {boolean} replaying */
  render(state, replaying) {
    this.#state = state;
    const info = sessionInfo(state, state.current);
    for (const button of [this.#actions, this.#share, this.#export]) button.hidden = info === undefined || replaying;
    this.#replay.hidden = !replaying;
    this.#title.textContent = state.current === null ? t("list.new") : titleOf(state, state.current);
    this.#usage.textContent = usageLine(info?.usage ?? {});
    const model = modelOf(state, state.current);
    const agent = info?.agent ?? "main";
    this.#model.textContent = model;
    this.#agent.textContent = agent === "main" ? "" : `${agent} · `;
    this.#picker.title = t("picker.open", { agent, model });
    this.#picker.setAttribute("aria-label", this.#picker.title);
    this.#showConnection(state.connection);
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

function action(name, label, act) {
  return h("button", { type: "button", class: `round quiet ${name}`, "aria-label": label, title: label, hidden: true, onclick: act }, icon(name));
}

customElements.define("tl-bar", TopBar);
