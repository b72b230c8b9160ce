/** The frame around the screens: sidebar, top bar, the bar of a phone, and the notice. */
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { chooseLanguage, language, t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";
import { chooseTheme, isDark } from "/shared/theme.js";
import { read } from "./api.js";
import { openOverview } from "./keys.js";
import { addressOf } from "./router.js";
import { searchField } from "./search_field.js";

const GROUPS = ["watch", "act", "set_up"];
/** Screens of the bar of a phone; the others are below More. */
const TABS = ["now", "conversations", "why", "waiting"];
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export class Frame {
  /** @param {HTMLElement} host @param {import("./screens.js").Screen[]} screens @param {{account: string, role: string}} session @param {{label: string, icon: string, act: () => void}[]} actions of the account menu */
  constructor(host, screens, session, actions) {
    this.screens = screens;
    this.counts = new Map();
    this.links = new Map(screens.map((screen) => [screen.name, []]));
    const { form, focus } = searchField((name) => this.links.has(name));
    this.focusSearch = focus;
    this.main = h("main", { id: "main" });
    this.notice = h("div", { class: "notice", role: "alert", hidden: true });
    host.replaceChildren(this.#sidebar(), h("div", { class: "page" }, this.#top(form, session, actions), this.notice, this.main), this.#tabs());
    this.#showStatus();
  }

  /** Mark the link of the screen that is shown. @param {string} name */
  select(name) {
    for (const [key, links] of this.links) for (const link of links) {
      if (key === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.current = name;
    this.more?.classList.toggle("current", !TABS.includes(name));
  }

  /** Show how many things are in a screen. @param {string} name @param {number} count @param {boolean} lamp a person is needed */
  setCount(name, count, lamp) {
    if (this.counts.get(name)?.count === count) return;
    this.counts.set(name, { count, lamp });
    for (const link of this.links.get(name) ?? []) {
      link.querySelector(".count")?.remove();
      if (count > 0) link.append(h("span", { class: lamp ? "count lamp" : "count" }, String(count)));
    }
  }

  /** @param {"live" | "lost" | ""} state of the data; empty for a screen that is read once @param {string} [detail] such as its age */
  setLive(state, detail = "") {
    this.live.hidden = state === "";
    this.live.dataset.state = state;
    this.live.lastElementChild.textContent = [t(state === "lost" ? "frame.lost" : "frame.live"), detail].filter(Boolean).join(" · ");
  }

  /** Show a sentence above the screen until the next screen opens; empty hides it. @param {string} text */
  notify(text) {
    this.notice.hidden = text === "";
    const close = h("button", { type: "button", class: "small", onclick: () => this.notify("") }, t("dialog.close"));
    this.notice.replaceChildren(...(text === "" ? [] : [h("span", {}, text), close]));
  }

  #sidebar() {
    const brand = h("div", { class: "brand" }, h("img", { src: "/shared/icon.svg", alt: "", width: 24, height: 24 }), "Trunkline");
    const pages = h("div", { class: "seg" }, h("a", { href: "/" }, t("frame.chat")), h("a", { href: addressOf("").replace(/\/$/, ""), "aria-current": "true" }, t("frame.console")));
    this.facts = h("footer", {});
    const groups = GROUPS.map((group) => this.#group(group)).filter(Boolean);
    return h("nav", { class: "side", "aria-label": t("frame.navigation") }, brand, pages, ...groups, this.facts);
  }

  #group(group) {
    const screens = this.screens.filter((screen) => screen.group === group);
    if (screens.length === 0) return null;
    const id = `group-${group}`;
    return h("section", { "aria-labelledby": id }, h("h2", { id }, t(`frame.${group}`)), h("ul", {}, ...screens.map((screen) => h("li", {}, this.#link(screen, "go")))));
  }

  #link(screen, kind) {
    const link = h("a", { class: kind, href: addressOf(screen.name) }, icon(screen.icon), h("span", {}, screen.title()));
    this.links.get(screen.name).push(link);
    return link;
  }

  #top(form, session, actions) {
    this.live = h("div", { class: "live", role: "status", "aria-label": t("frame.state"), hidden: true }, h("i", { class: "dot" }), h("span", {}));
    const keys = h("button", { type: "button", class: "bare hide", "aria-label": t("frame.shortcuts"), title: t("frame.shortcuts"), onclick: openOverview }, icon("keyboard"));
    const theme = h("button", { type: "button", class: "bare" });
    const named = () => {
      const label = t(isDark() ? "frame.light" : "frame.dark");
      theme.setAttribute("aria-label", label);
      theme.title = label;
      theme.replaceChildren(icon(isDark() ? "sun" : "moon"));
    };
    theme.addEventListener("click", () => (chooseTheme(isDark() ? "light" : "dark"), named()));
    named();
    const who = [t("frame.account"), session.account].filter(Boolean).join(": ");
    const account = h("button", { type: "button", class: "bare", "aria-label": who, title: who, "aria-haspopup": "menu", "aria-expanded": "false" }, icon("person"));
    const other = { label: t("frame.language"), icon: "talks", act: () => chooseLanguage(language === "de" ? "en" : "de") };
    account.addEventListener("click", () => openMenu(account, [other, ...actions]));
    return h("header", { class: "top" }, form, this.live, keys, theme, account);
  }

  #tabs() {
    const shown = TABS.map((name) => this.screens.find((screen) => screen.name === name)).filter(Boolean);
    const rest = this.screens.filter((screen) => !TABS.includes(screen.name));
    const more = h("button", { type: "button", "aria-haspopup": "dialog" }, icon("more"), h("span", {}, t("frame.more")));
    more.addEventListener("click", () => {
      const entry = (screen) => h("li", {}, h("a", { class: "go", href: addressOf(screen.name), "aria-current": screen.name === this.current && "page", onclick: () => dialog.close() }, icon(screen.icon), h("span", {}, screen.title()), this.#countOf(screen.name)));
      const chat = h("li", {}, h("a", { class: "go", href: "/" }, icon("talks"), h("span", {}, t("frame.chat"))));
      const dialog = openDialog(t("frame.more"), h("ul", { class: "more" }, ...rest.map(entry), chat));
    });
    this.more = more;
    return h("nav", { class: "tabs", "aria-label": t("frame.navigation") }, ...shown.map((screen) => this.#link(screen, "tab")), more);
  }

  #countOf(name) {
    const { count = 0, lamp } = this.counts.get(name) ?? {};
    return count > 0 && h("span", { class: lamp ? "count lamp" : "count" }, String(count));
  }

  async #showStatus() {
    try {
      const { version, uptime } = await read("/api/status");
      this.facts.replaceChildren(h("div", {}, t("frame.version", { version })), h("div", {}, `${t("frame.up", { time: age(uptime) })} · ${ZONE}`));
    } catch {
      this.facts.replaceChildren();
    }
  }
}

/** Return seconds as days and hours, or hours and minutes. */
function age(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3_600) % 24, Math.floor(seconds / 60) % 60];
  return days > 0 ? t("time.days", { days, hours }) : t("time.hours", { hours, minutes });
}
