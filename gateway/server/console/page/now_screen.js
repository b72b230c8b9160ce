/** Screen Now: what happens, and what needs a person. */
import { h, reconcile } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { emptyState, failedState, showLoading } from "/shared/states.js";
import { Table } from "/shared/table.js";
import { clock, counted, lasted, moment } from "./amounts.js";
import { gatewayNow, read } from "./api.js";
import { ageOf, channelRows, drawProviders, endedSentence, figureCells, needRows, queueFacts, smallLine } from "./now_parts.js";
import { askCertificate, askNode, drawNodes } from "./node_rows.js";
import { NowStream } from "./now_stream.js";
import { tryNow } from "./provider_try.js";
import { addressOf } from "./router.js";
import { shortChannel, shortId, word } from "./words.js";

/** Milliseconds between two drawings; events of the time between are drawn together. */
const DRAW_MS = 250;
const SLOW_MS = 15_000;
const SHOWN_ENDED = 12;
/** Milliseconds between two readings of the nodes. */
const NODES_MS = 5_000;
const WAITS = new Set(["waited", "question"]);

class Now {
  #context;
  #stream;
  /** @type {import("./now_state.js").State | null} */
  #state = null;
  #drawn = {};
  #live = false;
  /** Why the state could not be read; empty if it could. */
  #problem = "";
  #timer = 0;
  #clock = 0;
  #nodesTimer = 0;
  #over = new AbortController();
  #paused = false;
  #filter = "all";

  constructor(host, context) {
    this.#context = context;
    host.classList.add("now");
    this.headline = h("h1", { class: "verdict", tabindex: "-1" }, t("now.title"));
    this.time = h("time", { class: "muted num" });
    this.needs = h("ul", { class: "rows needs" });
    this.needsCard = h("section", { class: "card", "aria-label": t("now.needs_you"), hidden: true }, this.needs);
    this.figures = h("section", { class: "strip num", "aria-label": t("now.figures") });
    this.runningCount = h("span", { class: "muted" });
    this.filters = h("div", { class: "seg", role: "group", "aria-label": t("now.filter") }, ...["all", "slow", "waiting"].map((name) => h("button", { type: "button", "aria-pressed": String(name === "all"), "data-name": name, onclick: () => this.#choose(name) }, t(`now.filter.${name}`))));
    this.table = new Table({ label: t("now.running"), keyOf: (row) => row.id, address: (row) => addressOf("why", [row.id]), rowHeight: 46, columns: columns() });
    this.idle = emptyState({ icon: "pulse", title: t("now.idle"), text: t("now.idle_text") });
    this.running = h("section", { class: "card running" }, h("header", {}, h("h2", {}, t("now.running")), this.runningCount, this.filters), this.idle, this.table.element);
    this.pause = h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.#pauseAll() }, t("now.pause"), h("kbd", { "aria-hidden": "true" }, "P"));
    this.news = h("span", { class: "muted", role: "status" });
    this.feed = h("ul", { class: "rows feed" });
    this.activity = h("section", { class: "card", "aria-labelledby": "now-activity" }, h("header", {}, h("h2", { id: "now-activity" }, t("now.activity")), this.news, this.pause), this.feed);
    this.channels = h("ul", { class: "rows channels" });
    this.providers = h("ul", { class: "rows" });
    this.queues = h("dl", { class: "facts num" });
    this.nodes = h("ul", { class: "rows channels" });
    this.nodesCard = card("nodes", "", this.nodes);
    this.nodesCard.hidden = true;
    this.certificate = h("button", { type: "button", class: "small" });
    if (context.isAdmin) this.nodesCard.querySelector("header").append(this.certificate);
    this.body = h("div", { class: "stack", hidden: true }, this.needsCard, this.figures, h("div", { class: "two" }, h("div", { class: "stack" }, this.running, this.activity), h("div", { class: "stack" }, card("channels", t("now.four_hours"), this.channels), card("providers", t("now.circuits"), this.providers), card("queues", "", h("div", { class: "body" }, this.queues)), this.nodesCard)));
    this.failure = h("section", { class: "card", hidden: true });
    host.append(h("header", { class: "head" }, this.headline, this.time), this.failure, this.body);
    this.loaded = showLoading(host);
    context.keys({
      p: { label: t("now.pause"), act: () => this.#pauseAll() },
      j: { label: t("keys.next"), act: () => this.table.move(1) },
      k: { label: t("keys.previous"), act: () => this.table.move(-1) },
    });
    // What was held while the pointer or the focus was there is drawn when they leave.
    for (const element of [this.running, this.activity]) for (const type of ["pointerleave", "focusout"]) element.addEventListener(type, () => this.#soon());
    this.#clock = setInterval(() => this.#tick(), 1_000);
    this.#followNodes();
    this.#stream = new NowStream((state, live, problem) => {
      [this.#state, this.#live, this.#problem] = [state, live, problem];
      this.#soon();
    });
  }

  dispose() {
    this.#over.abort();
    clearTimeout(this.#nodesTimer);
    this.#stream.close();
    clearInterval(this.#clock);
    clearTimeout(this.#timer);
    this.loaded();
  }

  update() {}

  /** Show the nodes until the screen is left. A gateway that is not a node of a cluster is asked once. */
  async #followNodes() {
    if (await this.#readNodes()) this.#nodesTimer = setTimeout(() => this.#followNodes(), NODES_MS);
  }

  /** Read the nodes and show them. @returns {Promise<boolean>} whether there may be others later */
  async #readNodes() {
    const { signal } = this.#over;
    try {
      const { nodes, drain_seconds: seconds, rotating } = await read("/api/nodes", {}, { signal });
      if (nodes.length === 0) return false;
      this.nodesCard.hidden = false;
      this.certificate.textContent = t(rotating ? "now.certificate_runs" : "now.certificate");
      this.certificate.onclick = () => this.#followed(askCertificate(seconds));
      drawNodes(this.nodes, nodes, this.#context.isAdmin ? (node, action) => this.#followed(askNode(node, action, seconds)) : null);
      return true;
    } catch (error) {
      // Without a connection the screen is dated; during a takeover the next reading succeeds.
      return error.name !== "AbortError" && error.status !== 401;
    }
  }

  /** Read the nodes again when a dialog is closed. @param {Promise<void>} closed */
  async #followed(closed) {
    await closed;
    await this.#readNodes();
  }

  #choose(name) {
    this.#filter = name;
    for (const button of this.filters.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
    this.#drawn.rows = null;
    this.#draw();
  }

  #pauseAll() {
    this.#paused = !this.#paused;
    this.pause.setAttribute("aria-pressed", String(this.#paused));
    this.#draw();
  }

  /** Return whether a list must not move now: the pointer or the keyboard is in it, or everything is paused. */
  #isHeld(element) {
    return this.#paused || element.matches(":hover") || element.querySelector(":focus-visible") !== null;
  }

  #soon() {
    this.#timer ||= setTimeout(() => ((this.#timer = 0), this.#draw()), DRAW_MS);
  }

  #draw() {
    const state = this.#state;
    if (state === null) return this.#part("failure", this.#problem, () => this.#showFailure());
    this.loaded();
    this.failure.hidden = true;
    this.body.hidden = false;
    this.#tick();
    this.#part("needs", state.needs, () => this.#drawNeeds(state));
    this.#part("figures", state.figures, () => this.figures.replaceChildren(...figureCells(state, this.#context)));
    this.#part("channels", state.channels, () => this.channels.replaceChildren(...channelRows(state.channels)));
    this.#part("providers", state.providers, () => drawProviders(this.providers, state.providers, this.#context.isAdmin ? (one) => tryNow(one, this.#context) : null));
    this.#part("queues", state.queues, () => (this.queues.replaceChildren(...queueFacts(state.queues)), this.#context.setCount("dead", state.queues.dead_letters)));
    this.#part("asked", state.asked, () => this.#context.setCount("waiting", state.asked.questions + state.asked.pairings, true));
    if (!this.#isHeld(this.running) || this.#drawn.rows === undefined) this.#part("rows", state.running.rows, () => this.#drawRunning(state.running));
    const held = this.#isHeld(this.activity);
    if (!held) this.#part("activity", state.activity, () => this.#drawFeed(state.activity));
    const missed = held ? state.activity.filter((one) => !this.#drawn.activity?.includes(one)).length : 0;
    this.news.textContent = held ? t("now.held", { count: counted(missed) }) : "";
  }

  /** Draw a part if it is not the one that was drawn. */
  #part(name, value, draw) {
    if (this.#drawn[name] === value) return;
    this.#drawn[name] = value;
    draw();
  }

  /** Say why there is nothing to show; the stream is opened again by itself. */
  #showFailure() {
    this.loaded();
    this.failure.hidden = false;
    this.failure.replaceChildren(failedState({ text: `${this.#problem || t("api.unreachable")} ${t("now.tries")}` }));
  }

  #drawNeeds({ needs }) {
    const count = needs.length;
    this.headline.textContent = count === 0 ? t("now.fine") : t("now.several", { count: counted(count) });
    this.needsCard.hidden = count === 0;
    const focused = [...this.needs.querySelectorAll("a, button")].indexOf(document.activeElement);
    this.needs.replaceChildren(...needRows(needs, this.#context));
    if (focused >= 0) this.needs.querySelectorAll("a, button")[Math.min(focused, count - 1)]?.focus();
  }

  #drawRunning({ total, rows }) {
    const now = gatewayNow();
    const shown = rows.filter(({ since, step }) => this.#filter === "all" || (this.#filter === "slow" ? now - since > SLOW_MS : WAITS.has(step.kind)));
    this.runningCount.textContent = shown.length === total ? t("now.turns", { count: counted(total) }) : t("now.turns_shown", { count: counted(total), shown: counted(shown.length) });
    this.idle.hidden = shown.length > 0;
    this.table.element.hidden = shown.length === 0;
    this.table.setRows(shown);
  }

  #drawFeed(activity) {
    reconcile(this.feed, activity.slice(-SHOWN_ENDED).reverse(), ({ id, session, at }) => `${id || session} ${at}`, ended, () => {});
    if (activity.length === 0) this.feed.replaceChildren(h("li", { class: "muted", "data-key": "none" }, t("now.no_activity")));
  }

  /** Let times go on between two states, and say how old the state is while the connection is lost. */
  #tick() {
    const now = gatewayNow();
    for (const cell of this.table.element.querySelectorAll("[data-since]")) cell.textContent = lasted(now - Number(cell.dataset.since));
    if (this.#state === null) return;
    this.#context.setLive(this.#live ? "live" : "lost", this.#live ? "" : ageOf(this.#seenAt ?? this.#state.at));
    if (this.#live) this.#seenAt = now;
    this.time.textContent = this.#live ? moment(now) : ageOf(this.#seenAt ?? this.#state.at);
  }

  /** When the connection was last seen to work. */
  #seenAt = null;
}

function columns() {
  const who = ({ channel, person, title }) => h("span", { class: "who" }, h("span", { class: "channel", title: channel }, shortChannel(channel)), h("span", { class: "two-lines" }, h("b", { class: "clip" }, person), h("span", { class: "muted clip" }, title)));
  const doing = ({ step, agent, model, attempt }) => h("span", { class: "two-lines" }, h("span", { class: "clip" }, `${word(`now.step.${step.kind}`, step.kind)} ${step.name}`), h("span", { class: "muted clip" }, [agent, model, attempt > 1 ? t("why.attempt", { count: attempt }) : ""].filter(Boolean).join(" · ")));
  const since = (row) => h("span", { "data-since": row.since }, lasted(gatewayNow() - row.since));
  return [
    { label: t("now.who"), show: who },
    { label: t("now.doing"), show: doing },
    { label: t("now.path"), show: ({ path }) => smallLine(path), class: "path-cell" },
    { label: t("now.for"), show: since, right: true },
  ];
}

function ended(one) {
  const said = [h("b", {}, one.person || shortId(one.session)), ` ${endedSentence(one)}`];
  const shown = one.id ? h("a", { class: "grow", href: addressOf("why", [one.id]) }, ...said) : h("span", { class: "grow" }, ...said);
  return h("li", {}, h("time", { class: "muted num", datetime: new Date(one.at).toISOString() }, clock(one.at)), h("span", { class: "channel", title: one.channel }, shortChannel(one.channel)), shown);
}

function card(name, note, content) {
  return h("section", { class: "card", "aria-labelledby": `now-${name}` }, h("header", {}, h("h2", { id: `now-${name}` }, t(`now.${name}`)), note && h("span", { class: "muted end" }, note)), content);
}

/** @type {import("./screens.js").Screen["render"]} */
export function render(host, _params, context) {
  return new Now(host, context);
}
