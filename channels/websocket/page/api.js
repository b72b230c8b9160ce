/**
 * REST calls of the page. After a network failure they return null or false. Requests are authenticated by a
 * cookie that scripts cannot read; `signIn` sets it.
 */

/**
 * Return the newest sessions of the page's own channel, of all channels, and of requests without a session.
 * Each group is requested separately, so that many sessions of one do not hide the others.
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

/** Exchange the token for a cookie that lasts for the browser session. @returns {Promise<string>} the error, or "" */
export async function signIn(token) {
  const response = await call("POST", "/api/browser", { Authorization: `Bearer ${token}` });
  if (response?.ok) return "";
  if (response?.status === 429) return "Too many wrong tokens. Wait a minute, then try again.";
  return response ? "This token was not accepted." : "The gateway cannot be reached. Try again.";
}

/** @returns {Promise<string>} the error, or "" if the session was deleted */
export async function deleteSession(id) {
  const response = await call("DELETE", `/api/sessions/${encodeURIComponent(id)}`);
  if (response?.ok || response?.status === 404) return "";
  if (response?.status === 409) return "An answer is still running. Stop it, then delete the conversation.";
  return "The conversation could not be deleted. Try again.";
}

/** Return whether the server responds and refuses access; browsers do not say why a socket did not open. */
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
