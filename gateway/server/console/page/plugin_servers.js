/** MCP servers with their state and tools. New and changed tools are approved in a terminal, after reading them. */
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { Table } from "/shared/table.js";
import { counted } from "./amounts.js";
import { read } from "./api.js";

/**
 * Fill the card with the servers. Admins get their problems, sources and tools, too.
 * @param {HTMLElement} card @param {any[]} known names and states @param {boolean} isAdmin @param {AbortSignal} signal
 */
export async function serversCard(card, known, isAdmin, signal) {
  const columns = [
    { label: t("extensions.server"), show: ({ name }) => name, sort: ({ name }) => name },
    { label: t("extensions.state"), show: ({ state, problem }) => h("span", { class: `pill ${problem ? "bad" : ""}`, title: problem }, state), sort: ({ state }) => state },
    { label: t("extensions.tools"), show: ({ tools }) => counted(tools), sort: ({ tools }) => tools, right: true },
    { label: t("extensions.unapproved"), show: ({ waiting }) => counted(waiting), sort: ({ waiting }) => waiting, right: true },
  ];
  if (isAdmin) columns.push({ label: t("settings.source"), show: ({ source }) => h("span", { class: "muted clip" }, source), class: "more" });
  try {
    const servers = isAdmin ? (await read("/api/plugins/mcp/servers", {}, { signal })).servers : known;
    const table = new Table({ label: t("extensions.servers_list"), columns, keyOf: ({ name }) => name, open: isAdmin ? openServer : undefined });
    table.setRows(servers);
    card.hidden = false;
    card.replaceChildren(h("header", {}, h("h2", {}, t("extensions.servers"))), table.element);
  } catch {
    card.hidden = true;
  }
}

async function openServer({ name, problem, waiting }) {
  const list = h("ul", { class: "key-list" });
  openDialog(name, problem && h("p", { class: "bad", lang: "en" }, problem), waiting > 0 && h("p", {}, t("extensions.approve"), " ", h("code", {}, `trunkline mcp approve ${name}`)), list);
  try {
    const { tools } = await read(`/api/plugins/mcp/servers/${encodeURIComponent(name)}`);
    const row = ({ name: tool, description, state, difference }) => h("li", {}, h("div", { class: "grow" }, h("b", {}, tool), " ", h("span", { class: "pill" }, t(`extensions.tool.${state}`)), h("div", { class: "muted" }, description), difference && h("pre", { tabindex: "0", "aria-label": tool }, difference)));
    list.replaceChildren(...tools.map(row));
  } catch (error) {
    list.replaceChildren(h("li", { role: "alert" }, error.message));
  }
}
