/** Modal dialog with a question and two buttons. */
import { h } from "./dom.js";
import { t } from "./language.js";

/** @param {string} look of the button @returns {Promise<boolean>} whether the user agreed */
export function confirmed(title, text, action, look = "danger") {
  return new Promise((resolve) => {
    const answer = (yes) => () => (resolve(yes), dialog.close(), dialog.remove());
    const dialog = h(
      "dialog",
      { "aria-labelledby": "confirm-title", oncancel: answer(false) },
      h("h2", { id: "confirm-title" }, title),
      h("p", {}, text),
      h(
        "div",
        { class: "choices" },
        h("button", { type: "button", autofocus: true, onclick: answer(false) }, t("dialog.cancel")),
        h("button", { type: "button", class: look, onclick: answer(true) }, action),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
