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

/** Return the time (ms) with which an id of the gateway begins, or null for another id. */
export function timeOf(id) {
  const digits = /^([0-9a-f]{8})-([0-9a-f]{4})-7/.exec(id);
  return digits && parseInt(digits[1] + digits[2], 16);
}
