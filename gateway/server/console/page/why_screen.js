/** Screen Why: the path of one message, from its receipt to its answer or to the place where it stopped. */
import { copyButton } from "/shared/copy_button.js";
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { language, t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { ago, clock, counted, moment, since } from "./amounts.js";
import { read } from "./api.js";
import { addressOf } from "./router.js";
import { takeAction } from "./why_actions.js";
import { lineOf } from "./why_line.js";
import { answerAgain } from "./why_replay.js";
import { stepLines, stepsCard, whereTimeWent } from "./why_steps.js";
import { verdictCard } from "./why_verdict.js";
import { shortChannel, shortId, word } from "./words.js";

/** Milliseconds between looks at a message that is not settled yet. */
const LOOK_MS = 2_000;
const LIVE = new Set(["waiting", "running", "uncertain"]);

class WhyView {
  #host;
  #context;
  #id = "";
  #shown = "";
  #timer = 0;
  #asked = new AbortController();

  constructor(host, context) {
    this.#host = host;
    this.#context = context;
    context.keys({
      j: { label: t("keys.next"), act: () => this.#walk(1) },
      k: { label: t("keys.previous"), act: () => this.#walk(-1) },
      o: { label: t("why.open_step"), act: () => document.activeElement.closest(".steps button")?.click() },
      c: { label: t("why.copy"), act: () => this.#host.querySelector(".copy-case")?.click() },
    });
  }

  dispose() {
    this.#asked.abort();
    clearTimeout(this.#timer);
  }

  /** Show the message of an address, or ask for one. @param {import("./router.js").Params} params */
  update({ path }) {
    this.dispose();
    this.#id = path.join("/");
    this.#shown = "";
    this.#asked = new AbortController();
    if (this.#id) return this.#load();
    this.#host.replaceChildren(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("why.title"))), this.#find(), h("section", { class: "card" }, emptyState({ icon: "path", title: t("why.empty"), text: t("why.empty_text") })));
    this.#host.querySelector("input").focus();
  }

  async #load() {
    const { signal } = this.#asked;
    const first = this.#shown === "";
    const card = h("section", { class: "card" });
    if (first) this.#host.replaceChildren(this.#find(), card);
    const loaded = first ? showLoading(card) : () => {};
    try {
      const found = await read(`/api/why/${encodeURIComponent(this.#id)}`, { lang: language }, { signal });
      const text = JSON.stringify(found);
      // What did not change stays, with its focus and its open rows.
      if (text !== this.#shown) this.#show(found);
      if (first) this.#host.querySelector("h1")?.focus({ preventScroll: true });
      this.#shown = text;
      const isLive = LIVE.has(found.verdict?.code);
      this.#context.setLive(isLive ? "live" : "");
      if (isLive) this.#again();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (first) card.replaceChildren(failedState({ title: t("why.failed"), text: error.message, again: () => this.#load() }));
      else (this.#context.setLive("lost"), this.#again());
    } finally {
      loaded();
    }
  }

  #again() {
    this.#timer = setTimeout(() => (document.hidden ? this.#again() : this.#load()), LOOK_MS);
  }

  /** Return the field for an id or a link, where no message is shown. */
  #find() {
    const field = h("input", { type: "search", id: "why-find", autocomplete: "off", spellcheck: "false", maxlength: 500, placeholder: t("why.find"), "aria-label": t("why.find") });
    field.value = this.#id;
    const form = h("form", { role: "search", class: "why-find", "aria-label": t("why.title") }, icon("search"), field, h("button", { type: "submit" }, t("why.look")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const id = field.value.trim();
      if (id) this.#context.open("why", [id]);
    });
    return form;
  }

  /** Move the focus to another step. */
  #walk(by) {
    const steps = [...this.#host.querySelectorAll(".steps .what")];
    const at = steps.indexOf(document.activeElement);
    steps[at < 0 ? 0 : Math.max(0, Math.min(at + by, steps.length - 1))]?.focus();
  }

  #show(found) {
    if (found.choices?.length) return this.#host.replaceChildren(this.#find(), choices(found.choices));
    const { message, verdict, stations = [], steps = [], same_cause: same } = found;
    const focused = this.#host.querySelector(":focus")?.id;
    const more = same?.count > 1 ? t("why.same", { count: counted(same.count - 1), time: since(same.since) }) : "";
    const card = verdictCard(verdict, this.#actions(found), more, (action) => this.#act(action, found));
    if (!message) return this.#host.replaceChildren(this.#find(), card);
    const person = (verdict.actions ?? []).some(({ kind }) => kind === "allow");
    const line = lineOf(stations, verdict.code, person, () => this.#walk(0));
    const went = whereTimeWent(steps);
    went?.style.setProperty("--before", line.dataset.room);
    this.#host.replaceChildren(
      this.#crumb(found),
      card,
      ...(stations.length ? [h("section", { class: "card path", "aria-label": t("why.path") }, line, ...(went ? [went] : []))] : []),
      h("div", { class: "two" }, ...(steps.length ? [stepsCard(steps, same?.key ?? "")] : []), h("div", { class: "stack" }, ...this.#seen(found), identity(found))),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  /** Return what can be done. One replay answers all messages with the same cause; waiting needs no button. */
  #actions({ verdict, same_cause: same }) {
    const actions = (verdict.actions ?? []).filter(({ kind }) => kind !== "wait" && (this.#context.isAdmin || kind === "open" || kind === "message"));
    return actions.map((action) => (action.kind === "replay" && same?.count > 1 ? { ...action, label: t("why.answer_all", { count: counted(same.count) }) } : action));
  }

  #crumb(found) {
    const { channel, chat, title, person, at, session } = found.message;
    const text = () => asText(found);
    const copy = h("button", { type: "button", class: "small copy-case" }, icon("copy"), h("span", {}, t("why.copy")));
    copy.addEventListener("click", () => this.#copy(copy, text()));
    return h(
      "div",
      { class: "crumb" },
      h("span", { class: "channel", title: channel }, shortChannel(channel)),
      h("b", {}, person || t("why.somebody")),
      h("span", {}, t("why.in_chat", { chat: title || chat })),
      h("time", { class: "num", datetime: new Date(at).toISOString() }, moment(at)),
      h("span", { class: "muted" }, ago(at)),
      h("span", { class: "crumb-acts" }, session && this.#context.has("conversations") && h("a", { class: "button small", href: addressOf("conversations", [session]) }, icon("talks"), h("span", {}, t("why.conversation"))), copy),
    );
  }

  async #copy(button, text) {
    let done = t("copy.done");
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = t("copy.refused");
    }
    const label = button.querySelector("span");
    label.textContent = done;
    setTimeout(() => (label.textContent = t("why.copy")), 1_600);
  }

  #seen({ message, seen = [] }) {
    if (!message.text && seen.length === 0) return [];
    const bubbles = seen.map(({ kind, text, at, platform_id: id }) => h("div", { class: "bot", "data-kind": kind }, text ? h("div", { class: "bubble" }, text) : h("p", { class: "muted" }, word(`why.seen.${kind}`, kind)), h("small", { class: "num" }, [at ? clock(at) : "", word(`why.seen_kind.${kind}`, kind), id ? shortId(String(id)) : ""].filter(Boolean).join(" · "))));
    const first = (message.person || "").split(" ")[0];
    return [
      h(
        "section",
        { class: "card", "aria-labelledby": "why-seen" },
        h("header", {}, h("h2", { id: "why-seen" }, first ? t("why.saw", { name: first }) : t("why.seen")), h("span", { class: "channel" }, shortChannel(message.channel))),
        h("div", { class: "body seen" }, message.text && h("div", { class: "me" }, h("div", { class: "bubble" }, message.text), h("small", { class: "num" }, clock(message.at))), ...bubbles),
      ),
    ];
  }

  #act(action, found) {
    if (action.kind === "replay" || action.kind === "send_again") return answerAgain(planOf(found), () => this.#load());
    takeAction(action, found.message, this.#context, () => this.#load());
  }
}

/** Return the path of the dry run: of all messages with the cause, or of this one alone. */
function planOf({ message, same_cause: same }) {
  return same?.count > 1 ? `/api/why/same-cause/${encodeURIComponent(same.key)}/plan` : `/api/why/${encodeURIComponent(message.id)}/plan`;
}

/** Return the messages of an id that several chats have. */
function choices(list) {
  const link = ({ id, text, at }) => h("li", {}, h("a", { class: "grow", href: addressOf("why", [id]) }, text || shortId(id)), h("time", { class: "muted num" }, moment(at)));
  return h("section", { class: "card", "aria-labelledby": "why-choices" }, h("header", {}, h("h1", { id: "why-choices" }, t("why.choices", { count: counted(list.length) }))), h("ul", { class: "rows" }, ...list.map(link)));
}

function identity({ message, steps = [], proof = {} }) {
  const trace = steps.find(({ detail }) => detail?.trace)?.detail.trace;
  const ids = [
    ["message", message.id],
    ["platform_id", message.platform_id],
    ["session", message.session],
    ["chat", message.chat],
    ["account", message.account],
    ["trace", trace === message.id ? "" : trace],
  ].filter(([, id]) => id);
  const rows = Object.entries(proof).filter(([, count]) => count);
  return h(
    "section",
    { class: "card", "aria-labelledby": "why-identity" },
    h("header", {}, h("h2", { id: "why-identity" }, t("why.identity")), copyButton(t("why.copy_ids"), () => ids.map(([name, id]) => `${name}: ${id}`).join("\n"))),
    h(
      "div",
      { class: "body" },
      h(
        "dl",
        { class: "facts" },
        ...ids.flatMap(([name, id]) => [h("dt", {}, t(`why.id.${name}`)), h("dd", { class: "id" }, h("code", { title: String(id) }, shortId(String(id))), copyButton(t("why.copy_id", { name: t(`why.id.${name}`) }), () => String(id)))]),
        ...(message.attempts > 1 ? [h("dt", {}, t("why.attempts")), h("dd", {}, counted(message.attempts))] : []),
        ...(rows.length ? [h("dt", {}, t("why.proof")), h("dd", {}, t("why.proof_text", { rows: rows.map(([table, count]) => `${counted(count)} ${table}`).join(", ") }))] : []),
      ),
    ),
  );
}

/** Return a case as plain text, for a ticket or a chat. */
function asText({ message, verdict, stations, steps = [], proof = {} }) {
  const where = [message.channel, message.person, message.chat].filter(Boolean).join(" · ");
  const line = stations.map(({ text, state }) => `${state === "ok" ? "o" : state === "failed" ? "x" : "-"} ${text}`);
  const rows = Object.entries(proof).map(([table, count]) => `${count} ${table}`);
  return [verdict.text, `${where} · ${new Date(message.at).toISOString()} · ${message.id}`, "", ...line, "", ...stepLines(steps), "", rows.join(", ")].join("\n");
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new WhyView(host, context);
  host.classList.add("why");
  view.update(params);
  return view;
}
