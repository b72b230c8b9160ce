/**
 * REST calls of the page. After a network failure they return null or false, and so they do if a proxy before the gateway
 * answers instead. Requests are authenticated by a
 * cookie that scripts cannot read; `signIn` sets it.
 *
 * @typedef {{id: string, text: string, created_at: number, messages: number, model: string | null, shown: boolean}} Version
 */
import { t } from "/shared/language.js";
import { askProof } from "/shared/proof_dialog.js";

/** Sessions in a page of the list. */
const PAGE = 100;

/** Queries of the scopes of the list: the page's own channel, all channels, and requests without a session. */
const SCOPES = {
  own: (channel) => ({ channel }),
  all: () => ({ unnamed: "without" }),
  unnamed: () => ({ unnamed: "only" }),
};

/**
 * Return a page of the list of sessions, newest activity first. The first page also has all pinned ones.
 * @param {"own" | "all" | "unnamed"} scope @param {string} channel the page's own
 * @param {string | null} before `next` of the last page, or null
 * @returns {Promise<{sessions: import("./state.js").SessionInfo[], next: string | null} | null>}
 */
export async function listSessions(scope, channel, before) {
  const query = SCOPES[scope](channel);
  const pages = [json("/api/sessions", { ...query, pinned: "false", limit: PAGE, ...(before === null ? {} : { before }) })];
  if (before === null) pages.push(json("/api/sessions", { ...query, pinned: "true", limit: PAGE }));
  const [page, pinned = { sessions: [] }] = await Promise.all(pages);
  return page && pinned && { sessions: [...pinned.sessions, ...page.sessions], next: page.next ?? null };
}

/** @returns {Promise<import("./state.js").SessionInfo[] | null>} sessions whose title has all words */
export async function searchTitles(q) {
  return (await json("/api/sessions", { q, limit: 20 }))?.sessions ?? null;
}

/** @returns {Promise<{results: object[], next: string | null} | null>} messages that have all words */
export function searchMessages(q, cursor = null) {
  return json("/api/search", { q, limit: 30, ...(cursor === null ? {} : { cursor }) });
}

/** Change the title of a session, or pin it. @returns {Promise<import("./state.js").SessionInfo | null>} */
export async function changeSession(id, change) {
  const response = await call("PATCH", `/api/sessions/${encodeURIComponent(id)}`, { "Content-Type": "application/json" }, JSON.stringify(change));
  return response?.ok ? await response.json() : null;
}

/** @returns {Promise<import("./state.js").SessionInfo | null>} one session, or null */
export async function showSession(id) {
  const response = await call("GET", `/api/sessions/${encodeURIComponent(id)}`);
  return response?.ok ? await response.json() : null;
}

/**
 * Return messages of a session before a number and after another one: the newest `last` of them, oldest first. `next` is
 * null if there are no others.
 * @returns {Promise<{messages: {seq: number, message: object}[], next: number | null} | null>}
 */
export function listMessages(id, before, after, last) {
  return json(`/api/sessions/${encodeURIComponent(id)}/messages`, { before, after, last, html: true });
}

/** @returns {Promise<{files: number, added: number, removed: number, changes: object[]} | null>} of one answer */
export async function listChanges(id, answer) {
  const query = new URLSearchParams({ answer });
  const response = await call("GET", `/api/sessions/${encodeURIComponent(id)}/changes?${query}`);
  return response?.ok ? await response.json() : null;
}

/** @returns {Promise<import("./state.js").SessionInfo[] | null>} the nested runs of a session, oldest first */
export async function listChildren(id) {
  const response = await call("GET", `/api/sessions/${encodeURIComponent(id)}/children`);
  return response?.ok ? (await response.json()).children : null;
}

/** Exchange the token for a cookie that lasts for the browser session. @returns {Promise<string>} the error, or "" */
export async function signIn(token) {
  const response = await request("POST", "/api/browser", { Authorization: `Bearer ${token}` });
  if (response?.ok) return "";
  if (response?.status === 429) return t("token.too_many");
  return response ? t("token.refused") : t("token.unreachable");
}

/** End the login of this browser. @returns {Promise<boolean>} false if the gateway cannot be reached. Raises an error if it refuses. */
export async function forgetLogin() {
  const response = await request("DELETE", "/api/browser");
  if (response && !response.ok && response.status !== 401) throw new Error(response.statusText);
  return response !== null;
}

/** @returns {Promise<string>} the error, or "" if the session was deleted */
export async function deleteSession(id) {
  const response = await call("DELETE", `/api/sessions/${encodeURIComponent(id)}`);
  if (response?.ok || response?.status === 404) return "";
  if (response?.status === 409) return t("delete.running");
  return t("delete.failed");
}

/** Share what a session holds now. @returns {Promise<{url?: string, error?: string}>} the address, or the error */
export async function shareSession(id, days) {
  const response = await call("POST", `/api/sessions/${encodeURIComponent(id)}/share`, { "Content-Type": "application/json" }, JSON.stringify({ days }));
  if (response?.ok) return await response.json();
  return { error: response?.status === 409 ? (await response.json()).message : t("share.failed") };
}

/** @returns {Promise<{id: string, created_at: number, expires_at: number, views: number}[] | null>} valid links */
export async function listShares(id) {
  return (await json(`/api/sessions/${encodeURIComponent(id)}/shares`, {}))?.shares ?? null;
}

/** @returns {Promise<{messages: object[], cut: boolean} | null>} what a link would show now */
export function previewShare(id) {
  return json(`/api/sessions/${encodeURIComponent(id)}/share/preview`, {});
}

/** @returns {Promise<boolean>} whether the link is gone */
export async function revokeShare(share) {
  const response = await call("DELETE", `/api/shares/${encodeURIComponent(share)}`);
  return Boolean(response?.ok || response?.status === 404);
}

/** Return the models and the agents that a session can use; null after a failure. */
export async function listChoices() {
  const [models, agents] = await Promise.all([json("/api/models", {}), json("/api/agents", {})]);
  return { models: models?.models ?? null, agents: agents?.agents ?? null };
}

/** Let the browser download a session. @param {"markdown" | "json"} format @param {"shown" | "all"} branch its versions */
export function downloadSession(id, format, branch) {
  const link = document.createElement("a");
  link.href = `/api/sessions/${encodeURIComponent(id)}/export?format=${format}&branch=${branch}`;
  link.download = "";
  link.click();
}

/** Copy a session up to a message. @returns {Promise<import("./state.js").SessionInfo | null>} the fork, or null */
export async function forkSession(id, message) {
  const body = JSON.stringify({ message_id: message });
  const response = await call("POST", `/api/sessions/${encodeURIComponent(id)}/fork`, { "Content-Type": "application/json" }, body);
  return response?.ok ? await response.json() : null;
}

/** Return the places of a session with several versions. @returns {Promise<{versions: Version[]}[] | null>} */
export async function listBranches(id) {
  return (await json(`/api/sessions/${encodeURIComponent(id)}/branches`, {}))?.branches ?? null;
}

/** Send a text in place of a message. @returns {Promise<string>} the error, or "" */
export function editMessage(id, message, text) {
  return changeLog("POST", id, `messages/${encodeURIComponent(message)}/edit`, { text });
}

/** Ask for another answer. @returns {Promise<string>} the error, or "" */
export function regenerateAnswer(id, answer) {
  return changeLog("POST", id, `messages/${encodeURIComponent(answer)}/regenerate`);
}

/** Show another version, by its first message. @returns {Promise<string>} the error, or "" */
export function switchVersion(id, version) {
  return changeLog("PUT", id, "branch", { message_id: version });
}

async function changeLog(method, id, path, body) {
  const [headers, data] = body ? [{ "Content-Type": "application/json" }, JSON.stringify(body)] : [];
  const response = await call(method, `/api/sessions/${encodeURIComponent(id)}/${path}`, headers, data);
  if (response?.ok) return "";
  return response ? (await response.json()).message : t("branch.unreachable");
}

/** Answer a question. @param {string | string[]} decision @returns {Promise<string>} the error, or "" */
export async function settleApproval(id, approval, decision) {
  const path = `/api/sessions/${encodeURIComponent(id)}/approvals/${encodeURIComponent(approval)}`;
  const response = await callWithProof("POST", path, { "Content-Type": "application/json" }, JSON.stringify({ decision }));
  if (response?.ok) return "";
  return response ? (await response.json()).message : t("offline.decide");
}

/** Return the plugins with a manifest, or null. @returns {Promise<{name: string, description: string, configurable: boolean, enabled: boolean}[] | null>} */
export async function listPlugins() {
  return (await json("/api/plugins", {}))?.plugins ?? null;
}

/** @returns {Promise<{config?: object, error?: string}>} the configuration of a plugin, or the error */
export function readPluginConfig(name) {
  return configOf("GET", name);
}

/** Change values (a JSON Merge Patch) and secrets of a plugin. @returns {Promise<{config?: object, error?: string}>} */
export function changePluginConfig(name, change) {
  return configOf("PATCH", name, { "Content-Type": "application/json" }, JSON.stringify(change));
}

async function configOf(method, name, ...request) {
  const response = await callWithProof(method, `/api/plugins/${encodeURIComponent(name)}/config`, ...request);
  if (!response) return { error: t("plugins.failed") };
  return response.ok ? { config: await response.json() } : { error: (await response.json()).message };
}

/** @returns {Promise<{id: string, agent: string, public_status: string, workdir: string, workspace: string}[] | null>} the coding agents of the user, oldest first */
export async function listAgents() {
  return (await json("/api/coding-agents", {}))?.sessions ?? null;
}

/** @returns {Promise<{changes?: {files: object[], patch: string, truncated: boolean}, error?: string}>} of a workspace, or the error */
export async function readChanges(workspace) {
  const response = await call("GET", `/api/workspaces/${encodeURIComponent(workspace)}/diff`);
  if (!response) return { error: t("agents.failed") };
  return response.ok ? { changes: await response.json() } : { error: (await response.json()).message };
}

/** Return whether the server responds and refuses access; browsers do not say why a socket did not open. */
export async function isDenied(signal) {
  const response = await request("GET", "/api/sessions", {}, undefined, signal);
  return response?.status === 401;
}

/** @returns {Promise<any>} the JSON at a path, or null */
async function json(path, query) {
  const response = await call("GET", `${path}?${new URLSearchParams(query)}`);
  return response?.ok ? await response.json() : null;
}

/** Call a route that may ask again who the user is; then ask for the token, and repeat the call once. */
async function callWithProof(...request) {
  const response = await call(...request);
  if (response?.status !== 403 || (await response.clone().json()).error_name !== "ConfirmIdentityError") return response;
  return (await askProof({ label: t("token.label"), prove })) ? await call(...request) : response;
}

/** Prove who the user is, with the token. A login at the console comes before the cookie of the chat. */
async function prove(token) {
  const refusal = await signIn(token);
  if (!refusal) await request("POST", "/api/console/confirm", { "Content-Type": "application/json" }, JSON.stringify({ token }));
  return refusal;
}

/** Call a route. The page asks for the token if the login has ended. */
async function call(...given) {
  const response = await request(...given);
  if (response?.status === 401) document.dispatchEvent(new CustomEvent("denied"));
  return response;
}

async function request(method, path, headers = {}, body = undefined, signal = undefined) {
  try {
    const response = await fetch(path, { method, headers, body, signal });
    const type = response.headers.get("Content-Type") ?? "";
    const isForeign = type.startsWith("text/html") || (response.status >= 500 && !type.startsWith("application/json"));
    return isForeign ? null : response;
  } catch {
    return null;
  }
}
