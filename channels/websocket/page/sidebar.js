/** `<tl-sidebar>`: new chat, search and the list of conversations. On a phone it is a drawer. Sends `scope`. */
import "./conversation_list.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";
import { openSettings } from "./late.js";
import { widthHandle } from "./list_width.js";
import { linkTo } from "./router.js";
import "./search_panel.js";

const PHONE = matchMedia("(max-width: 800px)");
const SCOPES = ["own", "all", "unnamed"];

export class Sidebar extends HTMLElement {
  #search = h("tl-search");
  #list = h("tl-list");
  #scope = h("button", { type: "button", class: "quiet scope", title: t("list.scope"), "aria-haspopup": "menu", "aria-expanded": "false" });
  #agents = h("button", { type: "button", class: "round quiet", "aria-label": t("agents.title"), title: t("agents.title"), hidden: true, onclick: showAgents }, icon("terminal"));
  #nav = h("nav", { id: "sessions", "aria-label": t("list.conversations") });
  #scrim = h("div", { class: "scrim", onclick: () => this.toggle(false) });
  #opener = null;
  #signedIn = false;

  connectedCallback() {
    const brand = h("div", { class: "brand" }, h("img", { src: "/shared/icon.svg", alt: "", width: 24, height: 24 }), "Trunkline", h("div", { class: "seg" }, h("span", { "aria-current": "true" }, t("list.chat")), h("a", { href: "/console" }, t("list.console"))));
    const settings = h("button", { type: "button", class: "round quiet", "aria-label": t("settings.title"), title: t("settings.title"), onclick: () => openSettings(this.#signedIn) }, icon("gear"));
    const fresh = h("a", { class: "new-chat", href: linkTo(null) }, icon("plus"), t("list.new"), h("kbd", { "aria-hidden": "true" }, "Ctrl ⇧ O"));
    this.#nav.append(brand, fresh, this.#search, this.#list, h("div", { class: "nav-foot" }, this.#scope, this.#agents, settings), widthHandle());
    this.#search.connect(this.#list);
    this.replaceChildren(this.#scrim, this.#nav);
    this.#scope.addEventListener("click", () => openMenu(this.#scope, SCOPES.map((scope) => this.#choice(scope))));
    this.#nav.addEventListener("click", (event) => event.target.closest("a") && this.toggle(false));
    this.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.hasAttribute("open")) event.stopPropagation(), this.toggle(false);
    });
    PHONE.addEventListener("change", () => this.toggle(false));
    this.toggle(false);
  }

  /** Open or close the drawer; on a wide screen the list is always visible. @param {boolean} open */
  toggle(open, opener = null) {
    this.toggleAttribute("open", open);
    this.#nav.inert = PHONE.matches && !open;
    const room = document.querySelector(".room");
    // What the drawer covers is not reached from it. The token is asked for above both.
    if (document.querySelector("tl-token").hidden) room.inert = PHONE.matches && open;
    if (open) {
      this.#opener = opener;
      this.#nav.querySelector(".new-chat").focus();
    } else {
      this.#opener?.focus();
      this.#opener = null;
    }
  }

  focusSearch() {
    if (PHONE.matches) this.toggle(true);
    this.#search.focusInput();
  }

  renameCurrent() {
    this.#list.renameCurrent();
  }

  #choice(scope) {
    const act = () => this.dispatchEvent(new CustomEvent("scope", { bubbles: true, detail: scope }));
    return { label: t(`list.${scope}`), icon: scope === this.#scope.dataset.scope ? "check" : "list", act };
  }

  /** @param {import("./state.js").State} state */
  render(state) {
    // A user can sign out without a connection.
    if (state.server.signed_in && !this.#signedIn) import("./settings_dialog.js").catch(() => {});
    this.#signedIn = state.server.signed_in;
    // The plugin of coding agents has this command.
    this.#agents.hidden = !state.server.commands.some(({ name }) => name.replace("/", "") === "agents");
    const { scope } = state.listing;
    if (this.#scope.dataset.scope !== scope) {
      this.#scope.dataset.scope = scope;
      this.#scope.replaceChildren(t(`list.${scope}`), " ", icon("chevron_down"));
    }
    this.#list.render(state);
  }
}

let styles = null;

/** Load what coding agents need with its first use. */
async function showAgents() {
  styles ??= new Promise((done) => document.head.append(h("link", { rel: "stylesheet", href: "/page/terminal.css", onload: done, onerror: done })));
  const [{ openAgents }] = await Promise.all([import("./agents_dialog.js"), styles]);
  openAgents();
}

customElements.define("tl-sidebar", Sidebar);
