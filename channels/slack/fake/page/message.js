/** Message element, with the buttons of its acts. */

import { shown } from "/_fake/page/markup.js";

/** Return the element of a message. `act` performs an act of the user; `reply` opens its thread in the composer. */
export function messageItem(message, { act, reply, name }) {
  const item = make("li", ["message", message.bot && "bot", message.thread && "reply"]);
  item.classList.toggle("streaming", message.streaming);
  item.classList.toggle("hidden-one", Boolean(message.only_for));
  item.append(make("span", ["face"], message.user.slice(0, 1).toUpperCase()));
  item.append(head(message, act, reply), said(message, name));
  item.append(...files(message), ...controls(message, act), ...reactions(message));
  return item;
}

/** Create an element with text and classes; falsy classes are omitted. */
export function make(tag, classes = [], text = "") {
  const element = document.createElement(tag);
  element.className = classes.filter(Boolean).join(" ");
  element.textContent = text;
  return element;
}

/** Create a button. */
export function button(label, classes, pressed) {
  const element = make("button", classes, label);
  element.type = "button";
  element.addEventListener("click", pressed);
  return element;
}

function head(message, act, reply) {
  const line = make("div", ["who"]);
  const time = make("time", [], new Date(Number(message.ts) * 1000).toLocaleTimeString());
  line.append(make("b", [], message.user), time);
  if (message.edited) line.append(make("span", ["note"], "edited"));
  if (message.only_for) line.append(make("span", ["note"], `only ${message.only_for} sees this`));
  const tools = make("span", ["tools"]);
  tools.append(
    button("Reply", [], () => reply(message)),
    button(":eyes:", [], () => act("react", { ts: message.ts, emoji: "eyes" })),
  );
  if (!message.bot) tools.append(button("Edit", [], () => edit(message, act)));
  if (!message.only_for) tools.append(button("Delete", [], () => act("delete", { ts: message.ts, user: undefined })));
  line.append(tools);
  return line;
}

function edit(message, act) {
  const text = window.prompt("New text", message.text);
  if (text !== null) act("edit", { ts: message.ts, text, user: message.user });
}

function said(message, name) {
  const body = make("div", ["said"]);
  body.append(...shown(message.text, name));
  return body;
}

function files(message) {
  if (!message.files.length) return [];
  const row = make("div", ["files"]);
  row.append(...message.files.map((file) => make("span", [], `📎 ${file}`)));
  return [row];
}

function controls(message, act) {
  return (message.raw.blocks ?? []).flatMap((block) => {
    const elements = [...(block.elements ?? []), block.accessory].filter(Boolean);
    const usable = elements.flatMap((element) => control(element, message, act));
    if (!usable.length) return [];
    const row = make("div", ["actions"]);
    row.append(...usable);
    return [row];
  });
}

function control(element, message, act) {
  const press = (more) => act("press", { ts: message.ts, what: element.action_id, ...more });
  if (element.type === "button") {
    return [button(element.text.text, [element.style], () => press({}))];
  }
  if (!["static_select", "overflow", "radio_buttons"].includes(element.type)) return [];
  const select = make("select");
  select.setAttribute("aria-label", element.placeholder?.text ?? "Choose");
  select.append(new Option(element.placeholder?.text ?? "Choose…", ""));
  for (const option of element.options ?? []) select.append(new Option(option.text.text, option.value));
  select.addEventListener("change", () => press({ option: select.value }));
  return [select];
}

function reactions(message) {
  const names = Object.entries(message.reactions);
  if (!names.length) return [];
  const row = make("div", ["reactions"]);
  row.append(...names.map(([name, users]) => make("span", [], `:${name}: ${users.length}`)));
  return [row];
}
