/** Dialog with the command of the terminal that does what the page cannot do. */
import { copyButton } from "/shared/copy_button.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

/** @param {{label: string, command?: string}} action */
export function showCommand({ label, command }) {
  const text = h("p", {}, t(command ? "command.run" : "command.none"));
  openDialog(label, text, ...(command ? [h("p", { class: "command" }, h("code", {}, command), copyButton(t("command.copy"), () => command))] : []));
}
