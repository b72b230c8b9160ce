/** View of a new chat: a greeting and buttons with example messages. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { linkTo } from "./router.js";

const EXAMPLES = [
  [t("empty.clock"), t("empty.clock_ask")],
  [t("empty.sum"), t("empty.sum_ask")],
  [t("empty.tool"), t("empty.tool_ask")],
  [t("empty.code"), t("empty.code_ask")],
];

export function emptyState() {
  return h(
    "section",
    { class: "empty", "aria-labelledby": "empty-title" },
    h("img", { src: "/shared/icon.svg", alt: "", width: 56, height: 56 }),
    h("h2", { id: "empty-title" }, t("empty.title")),
    h("p", { class: "muted" }, t("empty.text")),
    h("div", { class: "examples" }, ...EXAMPLES.map(example)),
  );
}

/** View of a session that the gateway does not have. */
export function missingState() {
  return h(
    "section",
    { class: "empty", "aria-labelledby": "missing-title", hidden: true },
    h("img", { src: "/shared/icon.svg", alt: "", width: 56, height: 56 }),
    h("h2", { id: "missing-title" }, t("missing.title")),
    h("p", { class: "muted" }, t("missing.text")),
    h("p", {}, h("a", { class: "new-chat", href: linkTo(null) }, icon("plus"), t("missing.new"))),
  );
}

function example([title, prompt]) {
  const choose = (event) => event.currentTarget.dispatchEvent(new CustomEvent("send", { bubbles: true, detail: { text: prompt, parts: [] } }));
  return h("button", { type: "button", class: "example", onclick: choose }, h("strong", {}, title), h("span", {}, prompt));
}
