/** Deep links: `#/s/<session>` opens a session, any other address a new chat. */

const PATH = /^#\/s\/(.+)$/;

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

export function linkTo(session) {
  return session === null ? "#/" : `#/s/${encodeURIComponent(session)}`;
}

export function goTo(session) {
  location.hash = linkTo(session);
}
