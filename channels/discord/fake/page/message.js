/** One message: author, text, files, embeds, buttons, reactions, and its versions before each edit. */

import { h } from "/_fake/page/dom.js";
import { act } from "/_fake/page/fake.js";
import { plain, written } from "/_fake/page/text.js";

const EPHEMERAL = 64;
const LOADING = 128;
const STYLES = ["", "primary", "secondary", "success", "danger", "link", "premium"];
const SIGNS = ["👍", "👀", "✅", "❌"];

/**
 * @param said the message
 * @param place `{room, names, user(), answer(said), bot}`
 */
export function messageElement(said, place) {
  const mine = said.author.id === place.bot.id;
  const classes = ["message", mine && "bot", said.flags & EPHEMERAL && "private"].filter(Boolean).join(" ");
  return h(
    "li",
    { class: classes, id: `m${said.id}` },
    h("span", { class: "face", "aria-hidden": "true" }, said.author.username.slice(0, 1).toUpperCase()),
    h(
      "article",
      {},
      answered(said, place),
      h(
        "header",
        {},
        h("b", {}, said.author.username),
        mine && h("span", { class: "tag" }, "bot"),
        h("time", { datetime: said.timestamp }, new Date(said.timestamp).toLocaleTimeString()),
        said.reader && h("span", { class: "tag" }, `only ${said.reader} sees this`),
      ),
      h("div", { class: "text" }, said.flags & LOADING ? h("i", {}, "is thinking …") : written(said.content, place.names), versions(said)),
      said.attachments.map(attachment),
      said.embeds.map((embed) => embedElement(embed, place)),
      said.components.map((component) => componentElement(component, said, place)),
      h("div", { class: "signs" }, (said.reactions ?? []).map((sign) => signElement(sign.emoji.name, sign.count, said, place))),
    ),
    tools(said, place, mine),
  );
}

function answered(said, place) {
  const other = said.referenced_message;
  if (!said.message_reference || said.type < 19) return null;
  const text = other ? `${other.author.username}: ${plain(other.content, place.names).slice(0, 80)}` : "a message that is gone";
  return h("p", { class: "answered" }, `↱ ${text}`);
}

function versions(said) {
  if (!said.edited_timestamp) return null;
  const title = said.versions.map((text, index) => `${index + 1}. ${text.slice(0, 200)}`).join("\n");
  return h("span", { class: "edited", title }, said.versions.length ? `(edited ${said.versions.length}×)` : "(edited)");
}

function attachment(file) {
  if (file.content_type.startsWith("image/")) return h("img", { src: file.url, alt: file.description ?? file.filename });
  return h("a", { class: "attachment", href: file.url, download: file.filename }, `📄 ${file.filename} · ${file.size} bytes`);
}

function embedElement(embed, place) {
  const fields = (embed.fields ?? []).map((field) => h("div", {}, h("b", {}, field.name), h("p", {}, written(field.value, place.names))));
  return h(
    "blockquote",
    {},
    embed.author && h("small", {}, embed.author.name),
    embed.title && h("b", {}, embed.title),
    embed.description && h("p", {}, written(embed.description, place.names)),
    fields,
    embed.footer && h("small", {}, embed.footer.text),
  );
}

function componentElement(component, said, place) {
  const inside = (component.components ?? []).map((inner) => componentElement(inner, said, place));
  if (component.type === 1) return h("div", { class: "row" }, inside);
  if (component.type === 2) return button(component, said, place);
  if (component.type === 3) return menu(component, said, place);
  if (component.type === 10) return h("div", { class: "text" }, written(component.content, place.names));
  if (component.type === 14) return h("hr");
  if (component.accessory) inside.push(componentElement(component.accessory, said, place));
  return h("div", { class: component.type === 17 ? "container" : "section" }, inside);
}

function button(component, said, place) {
  const label = [component.emoji?.name, component.label].filter(Boolean).join(" ");
  if (component.url) return h("a", { class: "button", href: component.url, target: "_blank", rel: "noreferrer noopener" }, label);
  const press = () => act("press", { chat: place.room.id, key: said.id, custom_id: component.custom_id, user: place.user() });
  return h("button", { type: "button", class: STYLES[component.style], disabled: component.disabled, onclick: press }, label);
}

function menu(component, said, place) {
  const choose = (event) =>
    act("press", { chat: place.room.id, key: said.id, custom_id: component.custom_id, user: place.user(), values: [event.target.value] });
  return h(
    "select",
    { onchange: choose, disabled: component.disabled, "aria-label": component.placeholder ?? "Choose" },
    h("option", { value: "", selected: true, disabled: true }, component.placeholder ?? "Choose"),
    component.options.map((option) => h("option", { value: option.value }, option.label)),
  );
}

function signElement(sign, count, said, place) {
  const react = () => act("react", { chat: place.room.id, key: said.id, sign, user: place.user() });
  return h("button", { type: "button", class: "sign", onclick: react, "aria-label": `React with ${sign}` }, count ? `${sign} ${count}` : sign);
}

function tools(said, place, mine) {
  const where = { chat: place.room.id, key: said.id };
  const edit = () => {
    const text = prompt("Change to", said.content);
    if (text !== null) act("edit", { ...where, text });
  };
  const thread = () => {
    const name = prompt("Name of the thread", said.content.slice(0, 40) || "thread");
    if (name) act("start_thread", { chat: place.room.id, name, at: said.id, user: place.user() });
  };
  return h(
    "menu",
    {},
    SIGNS.map((sign) => signElement(sign, 0, said, place)),
    h("button", { type: "button", onclick: () => place.answer(said) }, "answer"),
    place.room.type === 0 && !said.thread && h("button", { type: "button", onclick: thread }, "thread"),
    !mine && h("button", { type: "button", onclick: edit }, "edit"),
    h("button", { type: "button", onclick: () => act("delete", where) }, "delete"),
  );
}
