/** Nodes of a cluster on the screen Now: their rows, and the dialogs in which an admin changes something there. */
import { announce } from "/shared/announcer.js";
import { copyButton } from "/shared/copy_button.js";
import { openDialog } from "/shared/dialog.js";
import { h, reconcile } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { counted, lasted, since } from "./amounts.js";
import { read, send } from "./api.js";
import { word } from "./words.js";

/** Milliseconds between two looks at how far the nodes are with a new certificate. */
const LOOK_MS = 1_000;
const DOTS = { active: "", standby: "", starting: "warn", draining: "warn", drained: "warn", outdated: "bad", wrong_clock: "bad", gone: "bad" };

/** @typedef {{name: string, state: string, version: string, machine: string, started_at: string, heartbeat_at: string, owner_since: string | null, takeover_seconds: number | null, differs: string[], clock_seconds: number}} ClusterNode */

/**
 * Draw the nodes of a cluster. A row and its button stay while their node is there, and with them the focus.
 * @param {Element} list @param {ClusterNode[]} nodes
 * @param {((node: ClusterNode, action: "drain" | "resume") => void) | null} act called by the button of a row; null for a user who may only read
 */
export function drawNodes(list, nodes, act) {
  const create = () => h("li", {}, h("div", { class: "who" }), h("div", { class: "node-more" }, h("span", { class: "muted" }), act && h("button", { type: "button", class: "small" })));
  reconcile(list, nodes, ({ name }) => name, create, (row, node) => update(row, node, act));
}

function update(row, node, act) {
  const { name, state, machine, version, started_at: started, heartbeat_at: seen, owner_since: owned, takeover_seconds: seconds, differs, clock_seconds: clock } = node;
  const at = Date.parse(state === "gone" ? seen : (owned ?? started));
  const more = [machine, version, seconds !== null && state === "active" ? t("now.took_over", { time: lasted(seconds * 1_000) }) : "", differs.length > 0 && state !== "gone" ? t("now.differs", { keys: differs.join(", ") }) : "", clock !== 0 && state !== "gone" ? t(clock > 0 ? "now.clock_ahead" : "now.clock_behind", { time: lasted(Math.abs(clock) * 1_000) }) : ""];
  row.querySelector(".who").replaceChildren(h("i", { class: `dot ${DOTS[state] ?? "warn"}`, "aria-hidden": "true" }), h("b", { class: "clip" }, name), h("span", { class: "muted num end" }, `${word(`now.node.${state}`, state)} ${t("now.since", { time: since(at) })}`));
  row.querySelector(".node-more > span").textContent = more.filter(Boolean).join(" · ");
  const button = row.querySelector("button");
  if (button === null) return;
  const action = state === "draining" || state === "drained" ? "resume" : "drain";
  button.hidden = ["gone", "outdated", "wrong_clock"].includes(state);
  button.textContent = t(`now.node.${action}`);
  button.setAttribute("aria-label", t(`now.node.${action}_one`, { name }));
  button.onclick = () => act(node, action);
}

/**
 * Say what draining or resuming a node does, and ask the gateway for it once the user confirms.
 * @param {ClusterNode} node @param {"drain" | "resume"} action @param {number} seconds `limits.drain_seconds` of the active node
 * @returns {Promise<void>} when the dialog is closed
 */
export function askNode({ name, owner_since: owned }, action, seconds) {
  const drains = action === "drain";
  const texts = drains ? [t(owned === null ? "now.node.drain_standby" : "now.node.drain_owner", { name, seconds: counted(seconds) }), t("now.node.drain_until", { name })] : [t("now.node.resume_text", { name })];
  return ask({ title: t(`now.node.${action}_title`, { name }), texts, command: `trunkline nodes ${action} ${name}`, label: t(`now.node.${action}`), look: drains ? "danger" : "primary" }, async (dialog) => {
    await send("POST", `/api/nodes/${encodeURIComponent(name)}/${action}`);
    announce([h("p", {}, t(`now.node.${action}_done`, { name }))]);
    dialog.close();
  });
}

/**
 * Say what replacing the certificate of the link between nodes does, ask for it, and show when it is done.
 * @param {number} seconds `limits.drain_seconds` @returns {Promise<void>} when the dialog is closed
 */
export function askCertificate(seconds) {
  const texts = [t("now.certificate_why"), t("now.certificate_how", { seconds: counted(seconds) })];
  return ask({ title: t("now.certificate_title"), texts, command: "trunkline nodes rotate", label: t("now.certificate"), look: "primary" }, async (dialog, say) => {
    const { changed } = await send("POST", "/api/nodes/certificate");
    const earlier = changed ? [] : [t("now.certificate_earlier")];
    say(t("now.certificate_runs"), ...earlier);
    let found;
    while ((found = await read("/api/nodes")).rotating) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      if (!dialog.open) return;
    }
    const gone = found.nodes.filter(({ state }) => state === "gone").map(({ name }) => name);
    say(t("now.certificate_done"), ...earlier, ...(gone.length > 0 ? [t("now.certificate_gone", { names: gone.join(", ") })] : []));
  });
}

/** Open a dialog that acts once the user confirms. `act` closes it, or says what came of it. */
function ask({ title, texts, command, label, look }, act) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "bad", role: "alert" });
    const news = h("div", { role: "status" });
    const cancel = h("button", { type: "button" }, t("dialog.cancel"));
    const confirm = h("button", { type: "button", class: look }, label);
    const dialog = openDialog(title, ...texts.map((text) => h("p", {}, text)), h("p", { class: "muted" }, t("settings.equal")), h("p", { class: "command" }, h("code", {}, command), copyButton(t("command.copy"), () => command)), news, problem, h("div", { class: "choices" }, cancel, confirm));
    const say = (...said) => {
      news.replaceChildren(...said.map((text) => h("p", {}, text)));
      confirm.hidden = true;
      cancel.textContent = t("dialog.close");
      cancel.focus();
    };
    cancel.addEventListener("click", () => dialog.close());
    confirm.addEventListener("click", async () => {
      confirm.disabled = true;
      problem.textContent = "";
      try {
        await act(dialog, say);
      } catch (error) {
        problem.textContent = error.message;
        confirm.hidden = confirm.disabled = false;
        confirm.focus();
      }
    });
    dialog.addEventListener("close", () => resolve());
    cancel.focus();
  });
}
