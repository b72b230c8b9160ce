/** Ids that the page makes up: for messages and for new sessions. */

const SESSION = /^[!-~]{1,200}$/;

/** 128 random bits as hex; works on plain http too, where `crypto.randomUUID` does not exist. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Whether an id from the address bar can be a session's. */
export function isSessionId(text) {
  return SESSION.test(text);
}
