/** List items of messages and drafts. */

import { h } from "/_fake/page/dom.js";
import { styled } from "/_fake/page/styled.js";

const FILES = ["photo", "document", "voice", "audio", "video", "animation"];
const SERVICE = {
  forum_topic_created: (data) => `opened the topic “${data.name}”`,
  forum_topic_edited: (data) => `renamed the topic to “${data.name}”`,
  forum_topic_closed: () => "closed the topic",
  forum_topic_reopened: () => "reopened the topic",
  new_chat_members: (data) => `${data.map((person) => person.first_name).join(", ")} joined`,
  migrate_from_chat_id: () => "made this a supergroup",
};

/**
 * @param {any} message
 * @param {{press: (message: any, button: any) => void, reply: (message: any) => void}} actions
 */
export function messageItem(message, actions) {
  if (message.service) return h("li", { class: "service" }, serviceText(message));
  const answered = message.reply_to_message;
  return h("li", { class: message.mine ? "bot" : "person" },
    h("div", { class: "bubble" },
      h("p", { class: "meta" },
        h("strong", {}, message.from.first_name),
        h("span", {}, `#${message.message_id}`),
        message.edit_date && h("span", {}, "edited"),
        message.message_thread_id && h("span", {}, `topic ${message.message_thread_id}`),
        h("button", { type: "button", onclick: () => actions.reply(message) }, "reply")),
      answered && !answered.forum_topic_created && h("p", { class: "answered" }, answered.text ?? answered.caption ?? "…"),
      ...FILES.filter((kind) => message[kind] && !(kind === "document" && message.animation)).map((kind) => file(kind, message[kind])),
      body(message)),
    buttons(message, actions),
    message.toast && h("p", { class: "toast" }, `“${message.toast}”`),
    message.reactions.length > 0 && h("p", { class: "toast" }, message.reactions.join(" ")));
}

/** Return the list item of a draft, which shows an answer that is not complete yet. */
export function draftItem(draft, stop) {
  return h("li", { class: "bot draft" },
    h("div", { class: "bubble" }, h("div", { class: "body" }, ...(draft.text ? styled(draft.text, draft.entities) : ["Thinking…"]))),
    draft.can_stop && h("div", { class: "buttons" }, h("button", { type: "button", onclick: stop }, "Stop")));
}

function body(message) {
  const text = message.source ?? message.text ?? message.caption ?? "";
  return text !== "" && h("div", { class: "body" }, ...styled(text, message.entities ?? message.caption_entities));
}

function buttons(message, actions) {
  const rows = message.reply_markup?.inline_keyboard ?? [];
  return rows.length > 0 && h("div", { class: "buttons" }, ...rows.map((row) =>
    h("div", {}, ...row.map((button) =>
      h("button", { type: "button", disabled: button.callback_data ? null : "", title: button.url, onclick: () => actions.press(message, button) }, button.text)))));
}

function file(kind, held) {
  const one = Array.isArray(held) ? held.at(-1) : held;
  const address = `/_fake/file/${encodeURIComponent(one.file_id)}`;
  if (kind === "photo") return h("img", { src: address, alt: "", width: one.width, height: one.height });
  return h("a", { href: address, download: one.file_name ?? kind }, `${one.file_name ?? kind} (${one.file_size} bytes)`);
}

function serviceText(message) {
  const kind = Object.keys(SERVICE).find((name) => name in message);
  return `${message.from.first_name} ${kind ? SERVICE[kind](message[kind]) : "did something"}`;
}
