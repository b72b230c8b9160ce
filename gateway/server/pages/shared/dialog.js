/** Modal dialog with a heading and a Close button. The browser returns the focus to the element that had it. */
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

let opened = 0;

/** @param {string} title @param {...Node} children @returns {HTMLDialogElement} */
export function openDialog(title, ...children) {
  const close = h("button", { type: "button", class: "round quiet", "aria-label": t("dialog.close"), title: t("dialog.close") }, icon("cross"));
  const id = `dialog-title-${++opened}`;
  const head = h("div", { class: "dialog-head" }, h("h2", { id }, title), close);
  const dialog = h("dialog", { class: "wide", "aria-labelledby": id }, head, ...children);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
