/** `<tl-search>`: field that searches titles and messages, and its results, which replace the list. */
import { searchMessages, searchTitles } from "./api.js";
import { fullTime, shortTime } from "/shared/dates.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { linkTo } from "./router.js";
import { marked } from "/shared/marked.js";
import { failedState, nothingFound } from "/shared/states.js";

/** Milliseconds without typing before a search. */
const PAUSE_MS = 150;
/** Most results in the document. */
const MOST = 150;

export class SearchPanel extends HTMLElement {
  #input = h("input", { type: "search", "aria-label": t("search.label"), placeholder: t("search.label"), autocomplete: "off", spellcheck: "false", maxlength: 200 });
  #status = h("div", { class: "muted", role: "status" });
  #failure = h("div", {});
  #titles = h("ul", { class: "hits" });
  #messages = h("ul", { class: "hits" });
  #titlesHead = h("h2", {}, t("search.titles"));
  #messagesHead = h("h2", {}, t("search.messages"));
  #more = h("button", { type: "button", hidden: true }, t("search.more"));
  #results = h("section", { class: "results", "aria-label": t("search.results"), tabindex: "-1", hidden: true }, this.#status, this.#failure, this.#titlesHead, this.#titles, this.#messagesHead, this.#messages, this.#more);
  #timer = 0;
  /** The search whose results are shown; results of an older one are dropped. */
  #search = null;

  /** @param {HTMLElement} list the element that the results replace */
  connect(list) {
    this.append(icon("search"), this.#input, h("kbd", { "aria-hidden": "true" }, "Ctrl K"));
    list.before(this.#results);
    this.#input.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#start(list), this.#input.value.trim() ? PAUSE_MS : 0);
    });
    for (const element of [this, this.#results]) element.addEventListener("keydown", (event) => this.#pressed(event, list));
    this.#more.addEventListener("click", () => this.#continue(this.#search));
  }

  focusInput() {
    this.#input.focus();
    this.#input.select();
  }

  #pressed(event, list) {
    const places = [this.#input, ...this.#results.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && this.#input.value) {
      this.#input.value = "";
      this.#start(list);
      this.#input.focus();
    } else if (step) places[Math.max(0, Math.min(places.indexOf(document.activeElement) + step, places.length - 1))].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async #start(list) {
    const query = this.#input.value.trim();
    const search = (this.#search = { query, next: null });
    this.#results.hidden = list.hidden = false;
    if (query) list.hidden = true;
    else return (this.#results.hidden = true);
    const [titles, page] = await Promise.all([searchTitles(query), searchMessages(query)]);
    if (search !== this.#search) return;
    const failed = titles === null || page === null;
    this.#titles.replaceChildren(...(titles ?? []).map((info) => hit(info.id, info.title, info.updated_at)));
    this.#messages.replaceChildren();
    this.#show(search, page ?? { results: [], next: null });
    const count = this.#titles.childElementCount + this.#messages.childElementCount;
    this.#failure.replaceChildren(...(failed ? [failedState({ title: t("search.failed"), text: t("search.failed_text"), again: () => this.#start(list) })] : []));
    if (failed) this.#status.textContent = "";
    else this.#status.replaceChildren(count ? t("search.found", { count: `${count}${page.next ? "+" : ""}` }) : nothingFound({ query }));
  }

  async #continue(search) {
    if (search.continues) return;
    search.continues = true;
    const page = await searchMessages(search.query, search.next);
    search.continues = false;
    if (search !== this.#search) return;
    if (page !== null) this.#show(search, page);
    this.#failure.replaceChildren(...(page === null ? [failedState({ title: t("search.failed"), text: t("search.failed_text") })] : []));
  }

  #show(search, { results, next }) {
    search.next = next;
    const found = results.filter(({ message_id }) => message_id !== null);
    this.#messages.append(...found.map((one) => hit(one.session, one.title, one.created_at, one)));
    this.#titlesHead.hidden = this.#titles.hidden = this.#titles.childElementCount === 0;
    this.#messagesHead.hidden = this.#messages.hidden = this.#messages.childElementCount === 0;
    this.#more.hidden = next === null || this.#messages.childElementCount >= MOST;
  }
}

function hit(session, title, at, { role, snippet, matches, message_id = null } = {}) {
  const href = linkTo(session, message_id);
  // An address that is open already does not change by a click, but its message is to be shown again.
  const again = () => location.hash === href && dispatchEvent(new HashChangeEvent("hashchange"));
  const who = role && h("b", {}, `${t(`who.${role}`)}: `);
  return h(
    "li",
    {},
    h(
      "a",
      { href, onclick: again },
      h("span", { class: "title" }, title || session),
      h("time", { title: fullTime(at) }, shortTime(at)),
      snippet !== undefined && h("span", { class: "snippet" }, who, ...marked(snippet, matches)),
    ),
  );
}

customElements.define("tl-search", SearchPanel);
