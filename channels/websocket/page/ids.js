/** Ids that the page creates for messages and new sessions. */

const SESSION = /^[!-~]{1,200}$/;

/** Return 128 random bits as hex. `crypto.randomUUID` does not exist on plain http. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return whether an id from the address bar can be a session id. */
export function isSessionId(text) {
  return SESSION.test(text);
}
