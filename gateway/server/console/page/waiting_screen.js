/** Screen Waiting: what waits for a person, with everything that a decision needs. */
import { announce } from "/shared/announcer.js";
import { copyButton } from "/shared/copy_button.js";
import { h, reconcile } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { ago, counted, lasted, since } from "./amounts.js";
import { gatewayNow, read, send } from "./api.js";
import { addressOf } from "./router.js";
import { channelName, diffLines, shortChannel, word } from "./words.js";

/** Milliseconds between two looks: a question may be decided elsewhere, or expire. */
const LOOK_MS = 2_000;
const SHOWN_DECIDED = 20;

class Waiting {
  #context;
  #asked = new AbortController();
  #timer = 0;
  /** When the lists were read last. */
  #seenAt = 0;
  /** @type {any[]} */
  #open = [];
  #decided = [];
  #chosen = "";
  /** The question in the form. It stays, also if it is decided elsewhere: another one must not come under a pointer or a key. */
  #kept = "";
  /** The same with what is known of it. */
  #last;
  #shown = "";
  #loaded = () => {};
  #ready = false;

  constructor(host, context) {
    this.#context = context;
    host.classList.add("waiting");
    this.count = h("span", { class: "pill warn", hidden: true });
    this.list = h("ul", { class: "rows asks" });
    this.listCard = h("div", { class: "card" }, h("header", {}, h("h2", {}, t("waiting.open")), h("span", { class: "muted" }, t("waiting.order"))), this.list);
    this.done = h("ul", { class: "rows" });
    this.doneCard = h("div", { class: "card" }, h("header", {}, h("h2", {}, t("waiting.decided"))), this.done);
    this.detail = h("section", { class: "card ask", "aria-label": t("waiting.one") });
    host.append(h("header", { class: "head" }, h("h1", { tabindex: "-1" }, t("waiting.heading")), this.count), h("div", { class: "asks-grid" }, h("div", { class: "stack" }, this.listCard, this.doneCard), this.detail));
    context.keys({
      j: { label: t("keys.next"), act: () => this.#walk(1) },
      k: { label: t("keys.previous"), act: () => this.#walk(-1) },
      a: { label: t("waiting.once"), act: () => this.detail.querySelector("[data-answer=once]")?.click() },
      d: { label: t("waiting.deny"), act: () => this.detail.querySelector("[data-answer=deny]")?.click() },
    });
    this.#loaded = showLoading(this.detail);
    this.#look();
  }

  dispose() {
    this.#asked.abort();
    clearTimeout(this.#timer);
    this.#loaded();
  }

  /** @param {import("./router.js").Params} params */
  update({ path }) {
    this.#chosen = path[0] ?? "";
    if (this.#ready) this.#draw();
  }

  async #look() {
    clearTimeout(this.#timer);
    const { signal } = this.#asked;
    try {
      const [open, decided, pairs] = await Promise.all([read("/api/questions", { state: "open" }, { signal }), read("/api/questions", { state: "decided" }, { signal }), read("/api/pairs", {}, { signal })]);
      this.#decided = decided.questions;
      this.#open = [...open.questions, ...pairs.waiting.map(asPairing)].sort((a, b) => a.expires_at - b.expires_at);
      this.#loaded();
      this.#ready = true;
      this.#seenAt = gatewayNow();
      this.#context.setLive("live");
      this.#draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#loaded();
      this.#context.setLive("lost", this.#seenAt && t("now.as_of", { time: since(this.#seenAt), ago: ago(this.#seenAt) }));
      if (this.#shown === "") this.detail.replaceChildren(failedState({ text: error.message, again: () => this.#look() }));
    }
    this.#timer = setTimeout(() => this.#look(), LOOK_MS);
  }

  #draw() {
    const count = this.#open.length;
    this.count.hidden = count === 0;
    this.count.textContent = t("waiting.count", { count: counted(count) });
    this.#context.setCount("waiting", count, true);
    const find = (list, wanted) => list.find(({ id }) => id === wanted);
    const chosen = find(this.#open, this.#chosen) ?? find(this.#decided, this.#chosen) ?? find(this.#open, this.#kept) ?? this.#over() ?? this.#open[0];
    this.#kept = chosen?.id ?? "";
    this.#last = chosen;
    // The links stay, with the focus, a press that has begun, and the place of a screen reader.
    if (count) reconcile(this.list, this.#open, ({ id }) => id, () => h("li", {}, h("a", { class: "grow ask-row" })), (item, one) => drawRow(item.firstElementChild, one, one.id === chosen?.id));
    else this.list.replaceChildren(h("li", { class: "muted" }, t("waiting.none")));
    this.done.replaceChildren(...(this.#decided.length ? this.#decided.slice(0, SHOWN_DECIDED).map(decidedRow) : [h("li", { class: "muted" }, t("waiting.none_decided"))]));
    // The same question stays as it is, with what was typed.
    const shown = chosen ? JSON.stringify([chosen.id, chosen.decision ?? null]) : "none";
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.detail.replaceChildren(...(chosen ? this.#view(chosen) : [emptyState({ icon: "hand", title: t("waiting.none"), text: t("waiting.none_text") })]));
  }

  /** Return the question in the form as decided elsewhere, while others are open. */
  #over() {
    if (this.#kept === "" || this.#open.length === 0) return undefined;
    const decision = this.#last.decision ?? { state: "gone", outcome: "", by: "", at: gatewayNow() };
    return this.#decided.find(({ id }) => id === this.#kept) ?? { ...this.#last, decision };
  }

  #walk(by) {
    const links = [...this.list.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? 0 : Math.max(0, Math.min(at + by, links.length - 1))]?.focus();
  }

  #view(one) {
    const over = one.decision;
    const kind = h("span", { class: over ? "pill" : "pill warn" }, t(`waiting.kind.${one.kind}`));
    const when = h("span", { class: "muted num" }, [t("waiting.asked", { ago: ago(one.created_at) }), over ? "" : t("waiting.expires", { time: since(one.expires_at) })].filter(Boolean).join(" · "));
    const why = one.message && h("a", { class: "button small end", href: addressOf("why", [one.message]) }, icon("path"), t("why.title"));
    const facts = [
      ["tool", one.tool && [one.tool, one.tool_text].filter(Boolean).join(": ")],
      ["effect", one.effect && `${t(`waiting.effect.${one.effect.kind}`)} ${one.effect.text}`],
      ["who", askedBy(one)],
      ["conversation", one.conversation],
      ["channel", channelName(one.channel)],
      ["may_answer", one.may_answer?.length ? [...one.may_answer, t("waiting.admins")].join(", ") : t("waiting.admins")],
      ["on_expiry", one.on_expiry && t(`waiting.expires.${one.kind}`)],
    ].filter(([, value]) => value);
    return [
      h("header", {}, kind, when, why),
      h(
        "div",
        { class: "body ask-body" },
        h("h2", {}, titleOf(one)),
        over ? h("p", { class: "muted" }, decisionOf(one)) : this.#context.isAdmin && this.#choices(one),
        one.command && h("pre", { tabindex: "0", "aria-label": t("waiting.command") }, one.command),
        one.reason && h("p", { class: "reason" }, icon("warning"), one.reason),
        one.detail && h("p", { class: "detail" }, one.detail),
        one.rule && h("p", { class: "muted" }, `${t("waiting.rule")} `, h("code", {}, one.rule), copyButton(t("waiting.copy_rule"), () => one.rule)),
        one.kind !== "pairing" && this.#led(one.id),
        h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, t(`waiting.fact.${name}`)), h("dd", {}, value)])),
      ),
    ];
  }

  /** Return what led to a question and what it changes, which is read when the question is shown. */
  #led(id) {
    const host = h("div", { class: "led" });
    const part = (title, ...content) => host.append(h("h3", {}, t(title)), ...content);
    read(`/api/questions/${encodeURIComponent(id)}/context`, {}, { signal: this.#asked.signal }).then(({ asked, calls, difference, more_lines: more }) => {
      if (difference) part("waiting.difference", h("pre", { tabindex: "0", "aria-label": t("waiting.difference") }, ...diffLines([...difference.split("\n"), ...(more ? [t("waiting.more", { count: counted(more) })] : [])])));
      if (asked || calls.length) part("waiting.led", h("p", { class: "detail" }, asked), h("ol", {}, ...calls.map(({ name, state, took }) => h("li", {}, [name, word(`why.state.${state}`), lasted(took / 1_000)].filter(Boolean).join(" · ")))));
    }, () => {});
    return host;
  }

  /** Return the buttons of a question; of one with several answers the boxes and a button. */
  #choices(one) {
    const answer = (values) => () => this.#answer(one, () => send("POST", `/api/questions/${encodeURIComponent(one.id)}`, { values }));
    const button = (content, act, more) => h("button", { type: "button", onclick: act, ...more }, ...[content].flat());
    const decide = (value, sign, key, more) => button([icon(sign), t(`waiting.${value}`), h("kbd", { "aria-hidden": "true" }, key)], answer([value]), { "data-answer": value, ...more });
    if (one.kind === "pairing") {
      // Of a code from before the last start only its hash is known.
      if (!one.code) return h("p", { class: "muted" }, t("waiting.old_code"));
      const pair = (role) => () => this.#answer(one, () => send("POST", "/api/pairs", { code: one.code, role }));
      return h("div", { class: "acts" }, button(t("waiting.pair"), pair("user"), { class: "primary", "data-answer": "once" }), button(t("waiting.pair_admin"), pair("admin")));
    }
    if (one.kind === "approval") return h("div", { class: "acts" }, decide("once", "check", "A", { class: "primary" }), one.always && button(t("waiting.always", { pattern: one.always }), answer(["always"])), decide("deny", "cross", "D"));
    const boxes = one.choices.map(({ value, label = "" }) => [value, h("input", { type: "checkbox", value }), label || value]);
    const text = h("input", { type: "text", maxlength: 4_000, "aria-label": t("waiting.own") });
    return h(
      "div",
      { class: "acts" },
      ...(one.multiple ? [...boxes.map(([, box, label]) => h("label", {}, box, ` ${label}`)), button(t("waiting.answer"), () => answer(boxes.filter(([, box]) => box.checked).map(([value]) => value))(), { class: "primary" })] : boxes.map(([value, , label]) => button(label, answer([value])))),
      ...(one.free_text ? [h("form", { class: "acts", onsubmit: (event) => (event.preventDefault(), text.value.trim() && answer([text.value.trim()])()) }, text, h("button", { type: "submit" }, t("waiting.answer")))] : []),
    );
  }

  async #answer(one, act) {
    for (const button of this.detail.querySelectorAll("button")) button.disabled = true;
    try {
      await act();
      announce([h("p", {}, t("waiting.sent"))]);
    } catch (error) {
      this.#context.notify(error.message);
    }
    this.#shown = "";
    this.#chosen = this.#kept = "";
    await this.#look();
    this.list.querySelector("a")?.focus();
  }
}

function asPairing({ code, channel, user: owner, name, created_at, expires_at }) {
  return { id: `pair-${channel}-${owner}`, kind: "pairing", code, channel, owner, name, created_at, expires_at, may_answer: [] };
}

/** Return who asks: a plugin, or the person of a code. An approval is asked by the gateway itself. */
function askedBy({ kind, owner }) {
  return kind === "approval" ? "" : owner;
}

function titleOf(one) {
  if (one.kind === "pairing") return t("waiting.lets", { name: one.name || one.owner });
  if (one.kind === "approval") return t("waiting.wants", { tool: one.tool });
  return one.title || t("waiting.kind.question");
}

/** Draw the link of a row: the effect of a call says more than its tool. */
function drawRow(link, one, current) {
  const left = Math.max(0, one.expires_at - gatewayNow());
  const bar = h("i", { "data-level": left < 120_000 ? "soon" : "later" });
  bar.style.setProperty("width", `${Math.min(100, (100 * left) / Math.max(1, one.expires_at - one.created_at))}%`);
  const about = one.kind === "pairing" ? t("waiting.code", { code: one.code || "–" }) : [one.conversation, askedBy(one)].filter(Boolean).join(" · ");
  link.href = addressOf("waiting", [one.id]);
  if (current) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  link.replaceChildren(
    h("span", { class: "who" }, icon({ approval: "tool", pairing: "person" }[one.kind] ?? "talks"), h("b", { class: "clip" }, one.effect ? `${one.tool} ${one.effect.text}` : titleOf(one)), h("span", { class: left < 120_000 ? "warn num end" : "muted num end" }, lasted(left))),
    h("span", { class: "who muted" }, h("span", { class: "channel", title: one.channel }, shortChannel(one.channel)), h("span", { class: "clip" }, about)),
    h("span", { class: "bar", "aria-hidden": "true" }, bar),
  );
}

function decisionOf({ decision: { state, outcome, by, at } }) {
  return [state === "answered" ? outcome : t(`waiting.state.${state}`), by ? t("waiting.by", { name: by }) : "", since(at)].filter(Boolean).join(" · ");
}

function decidedRow(one) {
  return h("li", {}, h("a", { class: "grow ask-row", href: addressOf("waiting", [one.id]) }, h("b", { class: "clip" }, titleOf(one)), h("span", { class: "muted" }, decisionOf(one))));
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, params, context) {
  const view = new Waiting(host, context);
  view.update(params);
  return view;
}
