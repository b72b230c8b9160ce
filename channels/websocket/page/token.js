/** The access token: kept for this tab only, sent as a subprotocol or a header, never in an address. */

const KEY = "trunkline.token";
const PROTOCOL = "trunkline.v1.html";

export function saveToken(token) {
  sessionStorage.setItem(KEY, token);
}

/** @returns {string[]} the subprotocols to connect with */
export function protocols() {
  const token = sessionStorage.getItem(KEY);
  return token ? [PROTOCOL, `token.${base64url(token)}`] : [PROTOCOL];
}

/** @returns {Record<string, string>} */
export function authHeaders() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function base64url(text) {
  const bytes = new TextEncoder().encode(text);
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
