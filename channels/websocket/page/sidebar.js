/** `<tl-sidebar>`: the list of sessions. On a phone it is a drawer. Sends `delete` {id} after the user confirmed. */
import { confirmed } from "./confirm_dialog.js";
import { h, reconcile } from "./dom.js";
import { usageLine } from "./figures.js";
import { icon } from "./icons.js";
import { linkTo } from "./router.js";
import { isAsking, isElsewhere, isRunning, isUnnamed, titleOf } from "./state.js";

const CHANNELS = { telegram: "TG", discord: "DC", slack: "SL", websocket: "WB", api: "AP" };
const PHONE = matchMedia("(max-width: 800px)");

export class Sidebar extends HTMLElement {
  #own = h("ul", { class: "sessions" });
  #others = h("ul", { class: "sessions" });
  #heading = h("h2", {}, "Other channels");
  #filter = h("input", { type: "checkbox" });
  #filterText = h("span");
  #filterRow = h("label", { class: "filter" }, this.#filter, this.#filterText);
  #nav = h("nav", { id: "sessions", "aria-label": "Conversations" });
  #scrim = h("div", { class: "scrim", onclick: () => this.toggle(false) });
  #shown = {};
  #opener = null;

  connectedCallback() {
    if (this.firstChild) return;
    const brand = h("div", { class: "brand" }, h("img", { src: "/page/icon.svg", alt: "", width: 26, height: 26 }), "Trunkline");
    const fresh = h("a", { class: "new-chat", href: linkTo(null), onclick: () => this.toggle(false) }, icon("plus"), "New chat");
    this.#filter.addEventListener("change", () => this.#draw());
    this.#nav.append(brand, fresh, h("div", { class: "lists" }, this.#own, this.#heading, this.#others, this.#filterRow));
    this.append(this.#scrim, this.#nav);
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
    const { sessions, current, threads, server } = this.#shown;
    const same = sessions === state.sessions && current === state.current && threads === state.threads;
    if (same && server === state.server) return;
    this.#shown = state;
    this.#draw();
  }

  /** Return the page's own sessions first; those of requests without a session only if the user shows them. */
  #draw() {
    const state = this.#shown;
    const unnamed = state.sessions.filter(isUnnamed);
    const isListed = (info) => this.#filter.checked || info.id === state.current || !isUnnamed(info);
    const others = state.sessions.filter((info) => isElsewhere(state, info));
    this.#fill(this.#own, state.sessions.filter((info) => !isElsewhere(state, info)));
    this.#fill(this.#others, others.filter(isListed));
    this.#own.hidden = this.#own.childElementCount === 0;
    this.#others.hidden = this.#others.childElementCount === 0;
    this.#heading.hidden = others.length === 0;
    this.#filterRow.hidden = unnamed.length === 0;
    this.#filterText.textContent = `Unnamed API requests (${unnamed.length})`;
  }

  #fill(list, infos) {
    reconcile(list, infos, (info) => info.id, () => h("li"), (row, info) => this.#renderRow(row, info, this.#shown));
  }

  #renderRow(row, info, state) {
    const running = isRunning(state, info.id) || info.status === "running";
    const asking = isAsking(state, info.id) || info.status === "waiting";
    const open = info.id === state.current;
    const title = titleOf(state, info.id);
    const look = JSON.stringify([title, info.usage, info.channel, running, asking, open]);
    if (row.dataset.look === look) return;
    row.dataset.look = look;
    const link = h(
      "a",
      { href: linkTo(info.id), "aria-current": open && "page", onclick: () => this.toggle(false) },
      h("span", { class: "title" }, isElsewhere(state, info) && channelMark(info.channel), title),
      h("span", { class: "muted" }, asking ? "waits for your approval" : running ? "answering…" : usageLine(info.usage ?? {})),
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

/** Channel badge: two visible letters, and the full name for screen readers. */
function channelMark(channel) {
  const [platform] = channel.split(".");
  const letters = CHANNELS[platform] ?? platform.slice(0, 2).toUpperCase();
  return h("span", { class: "channel", title: channel }, h("span", { "aria-hidden": "true" }, letters), h("span", { class: "offscreen" }, `${channel}: `));
}

customElements.define("tl-sidebar", Sidebar);
