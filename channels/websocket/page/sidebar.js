/** `<tl-sidebar>`: the list of sessions. On a phone it is a drawer. Sends `delete` {id} after the user agreed. */
import { confirmed } from "./confirm_dialog.js";
import { h, reconcile } from "./dom.js";
import { usageLine } from "./figures.js";
import { icon } from "./icons.js";
import { linkTo } from "./router.js";
import { isRunning, titleOf } from "./state.js";

const PHONE = matchMedia("(max-width: 800px)");

export class Sidebar extends HTMLElement {
  #list = h("ul", { class: "sessions" });
  #nav = h("nav", { id: "sessions", "aria-label": "Conversations" });
  #scrim = h("div", { class: "scrim", onclick: () => this.toggle(false) });
  #shown = {};
  #opener = null;

  connectedCallback() {
    if (this.firstChild) return;
    const brand = h("div", { class: "brand" }, h("img", { src: "/page/icon.svg", alt: "", width: 26, height: 26 }), "Trunkline");
    const fresh = h("a", { class: "new-chat", href: linkTo(null), onclick: () => this.toggle(false) }, icon("plus"), "New chat");
    this.#nav.append(brand, fresh, this.#list);
    this.append(this.#scrim, this.#nav);
    this.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.hasAttribute("open")) event.stopPropagation(), this.toggle(false);
    });
    PHONE.addEventListener("change", () => this.toggle(false));
    this.toggle(false);
  }

  /** Open or close the drawer; on a wide screen the list is always there. @param {boolean} open */
  toggle(open, opener = null) {
    this.toggleAttribute("open", open);
    this.#nav.inert = PHONE.matches && !open;
    if (open) {
      this.#opener = opener;
      this.#nav.querySelector("a").focus();
    } else {
      this.#opener?.focus();
      this.#opener = null;
    }
  }

  /** @param {import("./state.js").State} state */
  render(state) {
    const { sessions, current, threads } = state;
    if (this.#shown.sessions === sessions && this.#shown.current === current && this.#shown.threads === threads) return;
    this.#shown = { sessions, current, threads };
    reconcile(this.#list, sessions, (info) => info.id, () => h("li"), (row, info) => this.#renderRow(row, info, state));
  }

  #renderRow(row, info, state) {
    const running = isRunning(state, info.id) || info.status === "running";
    const open = info.id === state.current;
    const title = titleOf(state, info.id);
    const look = JSON.stringify([title, info.usage, running, open]);
    if (row.dataset.look === look) return;
    row.dataset.look = look;
    const link = h(
      "a",
      { href: linkTo(info.id), "aria-current": open && "page", onclick: () => this.toggle(false) },
      h("span", { class: "title" }, title),
      h("span", { class: "muted" }, running ? "answering…" : usageLine(info.usage ?? {})),
    );
    const remove = h("button", { type: "button", class: "quiet", "aria-label": `Delete ${title}`, title: "Delete" }, icon("trash"));
    remove.addEventListener("click", () => this.#ask(info.id, title));
    row.replaceChildren(link, remove);
  }

  async #ask(id, title) {
    const agreed = await confirmed("Delete this conversation?", `“${title}” and all its messages will be gone for good.`, "Delete");
    if (!agreed) return;
    this.dispatchEvent(new CustomEvent("delete", { bubbles: true, detail: { id } }));
    this.#nav.querySelector("a").focus();
  }
}

customElements.define("tl-sidebar", Sidebar);
