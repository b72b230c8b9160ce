/** Dialog that downloads a conversation: as Markdown or JSON, its shown version or all of them. */
import { downloadSession } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

/** @param {string} id @param {Record<string, object[]>} [versions] those of the conversation, as far as they are known */
export function openExport(id, versions = {}) {
  const format = group("export-format", t("export.format"), ["markdown", "json"]);
  const branch = group("export-branch", t("export.branch"), ["shown", "all"]);
  const form = h("form", { class: "stacked" }, format, Object.keys(versions).length > 0 && branch, h("div", { class: "choices" }, h("button", { type: "submit", class: "primary" }, t("export.download"))));
  const dialog = openDialog(t("export.title"), form);
  const chosen = (set) => set.querySelector("input:checked").value;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    downloadSession(id, chosen(format), branch.isConnected ? chosen(branch) : "shown");
    dialog.close();
  });
}

function group(name, label, values) {
  const choice = (value, at) => h("label", {}, h("input", { type: "radio", name, value, checked: at === 0, autofocus: at === 0 && name === "export-format" }), " ", t(`export.${value}`));
  return h("fieldset", {}, h("legend", {}, label), ...values.map(choice));
}
