/** Views of parts that are not streamed (errors, files), and of folded text (reasoning, summaries). */
import { addCopyButtons } from "/shared/copy_button.js";
import { h, notTwice } from "/shared/dom.js";
import { errorSentence } from "/shared/error_sentence.js";
import { errorAdvice, errorKind } from "./error_kinds.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { renderedBlock } from "/shared/safe_html.js";

/** @param {{error_name: string, message: string, metadata?: object}} part */
export function errorView({ error_name, message, metadata = {} }) {
  const kind = errorKind(error_name);
  const details = Object.entries({ error: error_name, ...metadata }).map(([name, value]) => `${name}: ${value}`);
  const send = (name) => notTwice((event) => event.target.dispatchEvent(new CustomEvent(name, { bubbles: true })));
  return h(
    "section",
    { class: "error-part", role: "group", "aria-label": t("error.label", { kind }) },
    h("strong", {}, icon("warning"), kind),
    h("p", {}, errorSentence({ error_name, message, metadata })),
    h("p", { class: "advice" }, errorAdvice(error_name)),
    h(
      "div",
      { class: "line" },
      // A delivery error has an answer already; a retry would answer the message twice.
      error_name !== "PlacementRefused" && h("button", { type: "button", class: "retry", onclick: send("ask-again") }, t("error.retry")),
      h("button", { type: "button", class: "why", title: t("error.why_what"), onclick: send("why") }, t("error.why")),
    ),
    h("details", {}, h("summary", {}, t("error.details")), h("pre", { tabindex: "0" }, details.join("\n"))),
  );
}

/** @param {{path: string, content?: string, line_range?: [number, number], html?: string}} part */
export function fileView(part) {
  if (part.html === undefined) return plainFile(part);
  const box = h("div");
  box.append(renderedBlock(part.html));
  addCopyButtons(box);
  return box;
}

function plainFile({ path, content, line_range }) {
  const lines = line_range ? `:${line_range[0]}-${line_range[1]}` : "";
  const caption = h("figcaption", {}, h("span", {}, path + lines));
  const figure = h("figure", { class: "code file" }, caption, h("pre", { tabindex: "0" }, h("code", {}, content ?? "")));
  addCopyButtons(figure);
  return figure;
}

/** Return a folded text; `body` is shown when it is opened. @param {string} kind @param {Element} body */
export function foldedText(kind, body) {
  const label = kind === "summary" ? t("part.summary") : t("part.reasoning");
  return h("details", { class: "folded" }, h("summary", {}, icon("chevron"), h("span", {}, label)), body);
}
