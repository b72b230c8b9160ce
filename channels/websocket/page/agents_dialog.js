/** Dialog with the coding agents of the user: the state of each session, and a button that opens its terminal. */
import { stateMark } from "./agent_state.js";
import { listAgents } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { openTerminal } from "./terminal_dialog.js";

export async function openAgents() {
  const list = h("ul", { class: "version-list agent-list" });
  const dialog = openDialog(t("agents.title"), list);
  const agents = await listAgents();
  const open = (agent) => (dialog.close(), openTerminal(agent));
  const rows = (agents ?? []).toReversed().map((one) => h("li", {}, row(one, open)));
  list.append(...(rows.length ? rows : [h("li", { class: "muted" }, t(agents ? "agents.none" : "agents.failed"))]));
  list.querySelector("button")?.focus();
}

function row(agent, open) {
  const id = agent.id.slice(agent.id.lastIndexOf("-") + 1);
  return h(
    "button",
    { type: "button", onclick: () => open(agent) },
    h("strong", {}, agent.agent),
    stateMark(agent.public_status),
    h("small", { class: "muted" }, `${id} · ${agent.workdir}`),
  );
}
