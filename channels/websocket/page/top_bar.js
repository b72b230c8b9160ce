/**
 * `<tl-bar>`: title and cost of the session, state of the connection, replay, and the theme switch. Sends `menu`
 * and `replay`.
 */
import { h } from "./dom.js";
import { usageLine } from "./figures.js";
import { icon } from "./icons.js";
import { canReplay, modelOf, sessionInfo, titleOf } from "./state.js";
import { isDark, toggleTheme } from "./theme.js";

const CONNECTION = {
  connecting: "Connecting…",
  online: "Connected",
  waiting: "Connection lost, trying again…",
  denied: "Access token needed",
};

export class TopBar extends HTMLElement {
  #title = h("h1");
  #usage = h("span", { class: "usage", title: "Tokens and cost of this conversation" });
  #model = h("span", { class: "model" });
  #connection = h("span", { class: "connection", role: "status" }, h("i", { "aria-hidden": "true" }), h("span"));
  #theme = h("button", { type: "button", class: "round quiet" });
  #replay = h("button", { type: "button", class: "round quiet", hidden: true });

  connectedCallback() {
    if (this.firstChild) return;
    const menu = h("button", { type: "button", class: "round quiet menu", "aria-label": "Conversations", "aria-controls": "sessions" }, icon("menu"));
    menu.addEventListener("click", () => this.dispatchEvent(new CustomEvent("menu", { bubbles: true, detail: menu })));
    this.#theme.addEventListener("click", () => (toggleTheme(), this.#showTheme()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#showTheme());
    this.#replay.addEventListener("click", () => this.dispatchEvent(new CustomEvent("replay", { bubbles: true })));
    this.#showTheme();
    const facts = h("div", { class: "facts" }, this.#usage, this.#connection);
    const heading = h("div", { class: "heading" }, this.#title, this.#model);
    this.append(h("header", {}, menu, heading, facts, this.#replay, this.#theme));
  }

  /** @param {import("./state.js").State} state @param {boolean} replaying */
  render(state, replaying) {
    const info = sessionInfo(state, state.current);
    this.#title.textContent = state.current === null ? "New chat" : titleOf(state, state.current);
    this.#usage.textContent = usageLine(info?.usage ?? {});
    this.#model.textContent = modelOf(state, state.current);
    this.#model.title = "The model that answers here";
    this.#showConnection(state.connection);
    this.#showReplay(replaying, replaying || canReplay(state));
  }

  #showReplay(replaying, offered) {
    const label = replaying ? "Stop the replay" : "Replay this conversation";
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
    const label = isDark() ? "Use the light theme" : "Use the dark theme";
    this.#theme.replaceChildren(icon(isDark() ? "sun" : "moon"));
    this.#theme.setAttribute("aria-label", label);
    this.#theme.title = label;
  }
}

customElements.define("tl-bar", TopBar);
