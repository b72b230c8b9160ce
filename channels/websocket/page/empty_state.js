/** View of a new chat: a greeting and buttons with example messages. */
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { linkTo } from "./router.js";

const EXAMPLES = [
  ["Ask the clock", "What time is it in Asia/Tokyo?"],
  ["Let it calculate", "What is 1240 * 17.5 / 100?"],
  ["See a tool at work", "Count slowly to 8, so that I can watch."],
  ["Write some code", "Write a Python function that merges two sorted lists, and explain it."],
];

export function emptyState() {
  return h(
    "section",
    { class: "empty", "aria-labelledby": "empty-title" },
    h("img", { src: "/page/icon.svg", alt: "", width: 56, height: 56 }),
    h("h2", { id: "empty-title" }, "What can I do for you?"),
    h("p", { class: "muted" }, "Ask anything, type / for commands, or start with one of these."),
    h("div", { class: "examples" }, ...EXAMPLES.map(example)),
  );
}

/** View of a session that the gateway does not have. */
export function missingState() {
  return h(
    "section",
    { class: "empty", "aria-labelledby": "missing-title", hidden: true },
    h("img", { src: "/page/icon.svg", alt: "", width: 56, height: 56 }),
    h("h2", { id: "missing-title" }, "This conversation does not exist"),
    h("p", { class: "muted" }, "It was deleted, or its address is wrong."),
    h("p", {}, h("a", { class: "new-chat", href: linkTo(null) }, icon("plus"), "Start a new chat")),
  );
}

function example([title, prompt]) {
  const choose = (event) => event.currentTarget.dispatchEvent(new CustomEvent("send", { bubbles: true, detail: { text: prompt, parts: [] } }));
  return h("button", { type: "button", class: "example", onclick: choose }, h("strong", {}, title), h("span", {}, prompt));
}
