/** Overview of the keyboard shortcuts. */
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { sendKey } from "./send_key.js";

/** Keys and what they do; the keys of two depend on the chosen send key. */
const keys = () => [
  ["Ctrl K", "keys.search"],
  ["Ctrl ⇧ O", "keys.new"],
  ["/", "keys.write"],
  [t(`keys.send_${sendKey()}`), "keys.send"],
  [sendKey() === "ctrl" ? "Enter" : "⇧ Enter", "keys.line"],
  ["Esc", "keys.stop"],
  ["↑ ↓", "keys.walk"],
  ["↑", "keys.edit"],
  ["[ ]", "keys.version"],
  ["F2", "keys.rename"],
  ["Del", "keys.delete"],
  ["?", "keys.help"],
];

export function openShortcuts() {
  const rows = keys().map(([pressed, key]) => h("div", {}, h("dt", {}, h("kbd", {}, pressed)), h("dd", {}, t(key))));
  openDialog(t("keys.title"), h("dl", { class: "keys" }, ...rows));
}
