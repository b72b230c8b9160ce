/** Deep links: `#/s/<session>` is an open session, anything else a new chat. */
import { isSessionId } from "./ids.js";

const PATH = /^#\/s\/(.+)$/;

/** @returns {string | null} the session in the address bar */
export function currentSession() {
  const found = PATH.exec(location.hash);
  if (!found) return null;
  try {
    const id = decodeURIComponent(found[1]);
    return isSessionId(id) ? id : null;
  } catch {
    return null;
  }
}

export function linkTo(session) {
  return session === null ? "#/" : `#/s/${encodeURIComponent(session)}`;
}

export function goTo(session) {
  location.hash = linkTo(session);
}
