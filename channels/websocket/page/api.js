/**
 * The few REST calls of the page. A network failure is an answer too: null, or false. The browser proves who
 * it is by a cookie that no script can read; `signIn` is what sets it.
 */

/**
 * The newest sessions of the page's own channel, of all channels, and of requests that named none: each kind
 * is asked for, so that many of one never hide the others.
 * @param {string} channel @returns {Promise<import("./state.js").SessionInfo[] | null>}
 */
export async function listSessions(channel) {
  const kinds = [{ channel, unnamed: "without" }, { unnamed: "without" }, { unnamed: "only" }];
  const responses = await Promise.all(kinds.map((kind) => call("GET", `/api/sessions?${new URLSearchParams(kind)}`)));
  if (!responses.every((response) => response?.ok)) return null;
  const lists = await Promise.all(responses.map((response) => response.json()));
  return [...new Map(lists.flatMap(({ sessions }) => sessions).map((info) => [info.id, info])).values()];
}

/** @returns {Promise<import("./state.js").SessionInfo | null>} one session, or null */
export async function showSession(id) {
  const response = await call("GET", `/api/sessions/${encodeURIComponent(id)}`);
  return response?.ok ? await response.json() : null;
}

/** Show the token once, for a cookie that lasts as long as the browser session. @returns {Promise<string>} the refusal, or "" */
export async function signIn(token) {
  const response = await call("POST", "/api/browser", { Authorization: `Bearer ${token}` });
  if (response?.ok) return "";
  if (response?.status === 429) return "Too many wrong tokens. Wait a minute, then try again.";
  return response ? "This token was not accepted." : "The gateway cannot be reached. Try again.";
}

/** @returns {Promise<string>} why the session is still there, or "" when it is gone */
export async function deleteSession(id) {
  const response = await call("DELETE", `/api/sessions/${encodeURIComponent(id)}`);
  if (response?.ok || response?.status === 404) return "";
  if (response?.status === 409) return "It is still answering. Stop the answer, then delete the conversation.";
  return "The conversation could not be deleted. Try again.";
}

/** Whether the server is there and refuses us: a browser does not say why a socket did not open. */
export async function isDenied() {
  const response = await call("GET", "/api/sessions");
  return response?.status === 401;
}

async function call(method, path, headers = {}) {
  try {
    return await fetch(path, { method, headers });
  } catch {
    return null;
  }
}
