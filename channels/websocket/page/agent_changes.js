/** Dialog with the changes of a workspace: the files, each with its diff, which is drawn when it is opened. */
import { readChanges } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { diffLines } from "./tool_panel.js";

const STATES = { A: "changes.new", D: "changes.deleted" };
/** Lines of a file begin with a blank, + or − in a patch, so no content looks like this. */
const FILE = /^(?=diff --git )/m;

/** @param {string} workspace */
export async function openChanges(workspace) {
  const body = h("div", { class: "changes" });
  const dialog = openDialog(t("agents.changes"), body);
  dialog.classList.add("agent-changes");
  const { changes, error } = await readChanges(workspace);
  if (error) body.append(h("p", { role: "alert" }, error));
  else show(body, changes);
}

function show(body, { files, patch, truncated }) {
  if (files.length === 0) {
    body.append(h("p", { class: "muted" }, t("agents.no_changes")));
    return;
  }
  const sum = (name) => files.reduce((total, file) => total + Math.max(0, file[name]), 0);
  const label = t("changes.files", { count: files.length });
  const patches = patch.split(FILE).filter((piece) => piece.startsWith("diff --git "));
  body.append(
    h("p", { class: "muted" }, label, " ", figures({ added: sum("added"), removed: sum("removed") })),
    h("div", {}, ...files.map((file, index) => fileView(file, patches[index]))),
    truncated ? h("p", { role: "note" }, t("agents.truncated")) : "",
  );
}

function fileView({ path, status, added, removed }, patch) {
  const state = STATES[status] ? h("span", {}, t(STATES[status])) : "";
  const caption = h("summary", {}, h("span", { class: "agent-path" }, path), state, added < 0 ? "" : figures({ added, removed }));
  const lines = h("pre", { tabindex: "0", role: "group", "aria-label": t("changes.diff", { path }) });
  const draw = () => lines.firstChild || lines.append(...(patch ? diffLines(patch.trimEnd()) : [t("agents.no_patch")]));
  return h("details", { class: "tool", ontoggle: draw }, caption, lines);
}

function figures({ added, removed }) {
  return h("span", { class: "figures" }, `+${added} −${removed}`);
}
