/** The few REST calls of the page. A network failure is an answer too: null, or false. */
import { authHeaders } from "./token.js";

/** @returns {Promise<import("./state.js").SessionInfo[] | null>} */
export async function listSessions() {
  const response = await call("GET", "/api/sessions");
  return response?.ok ? (await response.json()).sessions : null;
}

/** @returns {Promise<boolean>} whether the session is gone */
export async function deleteSession(id) {
  const response = await call("DELETE", `/api/sessions/${encodeURIComponent(id)}`);
  return response !== null && (response.ok || response.status === 404);
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
