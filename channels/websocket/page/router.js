/** Deep links: `#/s/<session>` opens a session, with `?m=<message>` at a message; any other address a new chat. */

const PATH = /^#\/s\/(.+?)(?:\?m=([\w-]+))?$/;

/** @returns {string | null} the session in the address bar; not checked */
export function currentSession() {
  const found = PATH.exec(location.hash);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

/** @returns {string | null} the message in the address bar; not checked */
export function currentMessage() {
  return PATH.exec(location.hash)?.[2] ?? null;
}

export function linkTo(session, message = null) {
  return session === null ? "#/" : `#/s/${encodeURIComponent(session)}${message === null ? "" : `?m=${message}`}`;
}

export function goTo(session) {
  location.hash = linkTo(session);
}
