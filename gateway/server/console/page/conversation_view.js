/** A conversation as people see it, with a margin that says what each turn did, how long and for how much. */
import { confirmed } from "/shared/confirm_dialog.js";
import { addCopyButtons, copyButton } from "/shared/copy_button.js";
import { openDialog } from "/shared/dialog.js";
import { h, notTwice } from "/shared/dom.js";
import { errorSentence } from "/shared/error_sentence.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { openMenu } from "/shared/menu.js";
import { renderedBlock } from "/shared/safe_html.js";
import { failedState, showLoading } from "/shared/states.js";
import { counted, lasted, millions, money, since } from "./amounts.js";
import { read, send } from "./api.js";
import { addressOf } from "./router.js";
import { channelName, shortChannel, shortId } from "./words.js";

/** Messages that are read at once. */
const PAGE = 200;

export class Conversation {
  /** @param {HTMLElement} host @param {string} session @param {import("./app.js").Context} context @param {{signal: AbortSignal, back: string, gone: () => void}} how */
  constructor(host, session, context, { signal, back, gone }) {
    Object.assign(this, { host, session, context, signal, back, gone });
    this.path = `/api/sessions/${encodeURIComponent(session)}`;
  }

  async load() {
    this.host.replaceChildren();
    const loaded = showLoading(this.host);
    try {
      const [info, page] = await Promise.all([read(this.path, {}, { signal: this.signal }), this.#read()]);
      this.#show(info, page.messages, page.next);
    } catch (error) {
      if (error.name !== "AbortError") this.host.replaceChildren(failedState({ title: t("talks.failed"), text: error.message, again: () => this.load() }));
    } finally {
      loaded();
    }
  }

  async #read(before = {}) {
    const { messages, next } = await read(`${this.path}/messages`, { last: PAGE, html: true, ...before }, { signal: this.signal });
    return { messages: messages.map(({ message, html = [] }) => ({ ...message, html: new Map(html) })), next };
  }

  /** Read the page before the shown messages. What is on the screen stays there, and so does the focus. */
  async #showEarlier(info, messages, before) {
    await this.#try(async () => {
      const page = await this.#read({ before });
      const view = document.scrollingElement;
      const below = view.scrollHeight - view.scrollTop;
      this.#show(info, [...page.messages, ...messages], page.next);
      view.scrollTop = view.scrollHeight - below;
      (this.host.querySelector(".earlier button") ?? this.host.querySelector(".turns")).focus({ preventScroll: true });
    });
  }

  #show(info, messages, next) {
    const back = h("a", { class: "button small back", href: this.back }, t("talks.back"));
    const earlier = next !== null && h("button", { type: "button", class: "small", onclick: () => this.#showEarlier(info, messages, next) }, t("talks.earlier"));
    this.host.replaceChildren(
      h("header", {}, back, h("span", { class: "channel", title: info.channel }, shortChannel(info.channel)), h("h2", {}, info.title || shortId(info.id)), info.parent && h("span", { class: "pill" }, t("talks.forked")), this.#actions(info)),
      figures(info),
      h("ol", { class: "turns", tabindex: "-1" }, earlier && h("li", { class: "earlier" }, earlier), ...turnsOf(messages).map(turnView)),
    );
  }

  #actions(info) {
    const bare = (name, label, act) => h("button", { type: "button", class: "bare", "aria-label": label, title: label, onclick: act }, icon(name));
    const save = (format) => ({ label: t(`talks.${format}`), icon: "file", act: () => download(`${this.path}/export?${new URLSearchParams({ format, branch: "shown" })}`) });
    const exported = bare("download", t("talks.export"), (event) => openMenu(event.currentTarget, [save("markdown"), save("json")]));
    exported.setAttribute("aria-haspopup", "menu");
    if (!this.context.isAdmin) return null;
    return h("span", { class: "acts" }, bare("fork", t("talks.fork"), notTwice(() => this.#fork())), exported, bare("share", t("talks.share"), () => this.#share()), bare("trash", t("talks.delete"), () => this.#delete(info)));
  }

  async #fork() {
    await this.#try(async () => {
      const fork = await send("POST", `${this.path}/fork`, {});
      this.context.open("conversations", [fork.id]);
    });
  }

  async #share() {
    if (!(await confirmed(t("talks.share_title"), t("talks.share_text"), t("talks.share")))) return;
    await this.#try(async () => {
      const { url } = await send("POST", `${this.path}/share`, {});
      openDialog(t("talks.shared"), h("p", { class: "command" }, h("code", {}, url), copyButton(t("talks.copy_link"), () => url)));
    });
  }

  async #delete(info) {
    if (!(await confirmed(t("talks.delete_title"), t("talks.delete_text", { title: info.title || info.id }), t("talks.delete")))) return;
    await this.#try(async () => {
      await send("DELETE", this.path);
      this.gone();
    });
  }

  async #try(act) {
    try {
      await act();
    } catch (error) {
      if (error.name !== "AbortError") this.context.notify(error.message);
    }
  }
}

function download(href) {
  const link = h("a", { href, download: "" });
  link.click();
}

function figures({ channel, agent, model, messages, usage, created_at: at }) {
  const facts = [channelName(channel), `${t("talks.agent")} ${agent}`, model, t("talks.messages", { count: counted(messages) }), t("talks.tokens", { input: millions(usage.input_tokens), output: millions(usage.output_tokens) }), usage.cost === null ? "" : money(usage.cost), t("talks.since", { time: since(at) })];
  return h("p", { class: "facts-line muted num" }, ...facts.filter(Boolean).map((fact) => h("span", {}, fact)));
}

/** Return the messages in turns: what people wrote, then what answered it. */
function turnsOf(messages) {
  const turns = [];
  for (const message of messages) {
    if (message.display?.hidden || message.role === "system") continue;
    const last = turns.at(-1);
    if (message.role === "user") {
      if (!last || last.answers.length) turns.push({ asked: [message], answers: [] });
      else last.asked.push(message);
    } else if (last) last.answers.push(message);
    else turns.push({ asked: [], answers: [message] });
  }
  return turns;
}

function turnView({ asked, answers }) {
  return h("li", { class: "turn" }, h("div", { class: "said" }, ...asked.flatMap(questionView), ...answers.flatMap(answerView)), margin(asked, answers));
}

function questionView(message) {
  const files = message.parts.filter(({ type }) => type === "image" || type === "file").map((part) => h("span", { class: "pill" }, part.path ?? part.alt_text ?? part.mime_type));
  const who = message.origin?.name || t("talks.person");
  return [h("div", { class: "bubble mine", dir: "auto" }, textOf(message), ...files), h("small", { class: "muted num mine" }, `${who} · ${since(message.created_at)}`)];
}

function answerView(message) {
  const results = new Map(message.parts.filter(({ type }) => type === "tool_result").map((part) => [part.tool_call_id, part]));
  const shown = message.parts.flatMap((part, index) => {
    if (part.type === "text" && part.content.trim() && part.kind !== "reasoning") return [h("div", { class: part.kind === "notice" ? "bubble prose notice" : "bubble prose" }, proseOf(message.html.get(index)) ?? part.content)];
    if (part.type === "tool_call") return [toolView(part, results.get(part.tool_call_id))];
    if (part.type === "error") return [h("div", { class: "bubble failed", title: part.metadata?.original }, errorSentence(part))];
    if (part.type === "image" || part.type === "file") return [h("span", { class: "pill" }, part.path ?? part.alt_text ?? part.mime_type)];
    return [];
  });
  return [...shown, h("small", { class: "muted num" }, since(message.created_at))];
}

/** Return the text of a part as the server rendered it. @param {string | undefined} html */
function proseOf(html) {
  if (html === undefined) return null;
  const fragment = renderedBlock(html);
  [...fragment.children].forEach(addCopyButtons);
  return fragment;
}

/** Return a tool call that opens to its arguments and its output. */
function toolView({ tool_name: name, arguments: given }, result) {
  const took = result?.metadata?.duration_ms;
  return h("details", { class: result?.is_error ? "call failed" : "call" }, h("summary", {}, icon("tool"), h("code", {}, name), h("span", { class: "muted num end" }, took === undefined ? "" : lasted(took))), h("pre", { tabindex: "0" }, JSON.stringify(given, null, 2)), result && h("pre", { tabindex: "0" }, result.output.slice(0, 4_000)));
}

/** Return what a turn did: time, cost, models, tools, and the way to Why. */
function margin(asked, answers) {
  const failed = answers.some(({ parts }) => parts.some(({ type }) => type === "error"));
  const sum = (name) => answers.reduce((all, { metadata = {} }) => all + (metadata[name] ?? 0), 0);
  const tools = answers.flatMap(({ parts }) => parts.filter(({ type }) => type === "tool_result"));
  const names = new Map(answers.flatMap(({ parts }) => parts.filter(({ type }) => type === "tool_call").map((part) => [part.tool_call_id, part.tool_name])));
  const models = [...new Set(answers.map(({ metadata = {} }) => metadata.model).filter(Boolean))];
  const row = (name, value) => h("div", {}, h("span", { class: "clip" }, name), h("span", { class: "num" }, value));
  const message = asked.at(-1) ?? answers[0];
  return h(
    "div",
    { class: "margin", role: "group", "aria-label": t("talks.turn") },
    h("div", { class: failed ? "bad sum-line" : "sum-line" }, h("b", {}, failed ? t("talks.no_answer") : answers.length ? lasted(sum("duration_ms")) : t("talks.unanswered")), h("b", { class: "num" }, sum("cost") ? money(sum("cost")) : "")),
    ...models.map((name) => row(name, "")),
    ...tools.map(({ tool_call_id: id, metadata }) => row(names.get(id) ?? t("why.step.tool"), metadata?.duration_ms === undefined ? "" : lasted(metadata.duration_ms))),
    sum("input_tokens") > 0 && row(t("talks.tokens_both"), `${counted(sum("input_tokens"))} / ${counted(sum("output_tokens"))}`),
    h("a", { class: "why-link", href: addressOf("why", [message.id]) }, icon("path"), t(failed ? "talks.why_no_answer" : "why.title")),
  );
}

function textOf({ parts }) {
  return parts
    .filter(({ type, kind }) => type === "text" && kind !== "reasoning")
    .map(({ content }) => content)
    .join("\n\n");
}
