/**
 * Requests to the gateway. They are authenticated by a cookie that scripts cannot read. A refused one raises
 * `ApiError`; one without authentication also dispatches `signed-out`, and the login opens. If the gateway wants to
 * know again who asks, the user is asked and the request is repeated.
 */
import { t } from "/shared/language.js";

/** Where a wrong token is refused with the same status as a request without a login. */
const PROOFS = ["/api/console/login", "/api/console/confirm"];

/** Milliseconds that the clocks of browser and gateway may differ; the header of the gateway has whole seconds. */
const CLOCKS_MS = 5_000;
let ahead = 0;

/** Return the time at the gateway, which names all times of the console: the browser's clock may be wrong. */
export function gatewayNow() {
  return Date.now() + ahead;
}

export class ApiError extends Error {
  /** @param {number} status 0 if the gateway cannot be reached @param {string} name of the error @param {string} message @param {any} [body] */
  constructor(status, name, message, body) {
    super(message);
    Object.assign(this, { status, name, body });
  }
}

/** Read JSON. @param {string} path such as "/api/status" @param {Record<string, any>} [query] empty values are left out */
export function read(path, query = {}, { signal } = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return request("GET", kept.length > 0 ? `${path}?${new URLSearchParams(kept)}` : path, undefined, signal);
}

/** Change something. @param {"POST" | "PUT" | "PATCH" | "DELETE"} method @param {string} path @param {any} [body] sent as JSON */
export async function send(method, path, body) {
  try {
    return await request(method, path, body);
  } catch (error) {
    if (error.name !== "ConfirmIdentityError") throw error;
    // Loaded only now, because the module of the login imports this one.
    const { confirmIdentity } = await import("./session.js");
    if (!(await confirmIdentity())) throw error;
    return await request(method, path, body);
  }
}

async function request(method, path, body, signal) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "UnreachableError", t("api.unreachable"));
  }
  const difference = Date.parse(response.headers.get("Date")) - Date.now();
  ahead = Math.abs(difference) > CLOCKS_MS ? difference : 0;
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  if (response.status === 401 && !PROOFS.includes(path)) dispatchEvent(new CustomEvent("signed-out"));
  throw new ApiError(response.status, answer?.error_name ?? "", answer?.message ?? t("api.foreign", { status: response.status }), answer);
}
