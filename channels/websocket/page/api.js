/** The few REST calls of the page. A network failure is an answer too: null, or false. */
import { authHeaders } from "./token.js";

/** @returns {Promise<import("./state.js").SessionInfo[] | null>} */
export async function listSessions() {
  const response = await call("GET", "/api/sessions");
  return response?.ok ? (await response.json()).sessions : null;
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

async function call(method, path) {
  try {
    return await fetch(path, { method, headers: authHeaders() });
  } catch {
    return null;
  }
}
