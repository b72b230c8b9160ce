/**
 * Drafts of messages, one for each version of a session; they survive a reload of the tab. Text and attachments
 * are stored separately, so that a keystroke does not store the attachments again.
 */

const TEXT = "trunkline.draft.text.";
const FILES = "trunkline.draft.uploads.";
/** The version of a session that was shown last: after a reload the versions are known late. */
const BRANCH = "trunkline.draft.branch.";
/** Fallback for data that the browser does not store (private mode, quota); lost with the page. */
const unstored = new Map();

/** @typedef {{session: string | null, branch: string}} Place of a draft; the session of a new chat is null, and `branch` is that of `branchOf` */

/** @param {Place} place @returns {{text: string, uploads: import("./attachments.js").Upload[]}} */
export function draft(place) {
  return { text: read(TEXT, name(place)), uploads: JSON.parse(read(FILES, name(place)) || "[]") };
}

/** @param {Place} place */
export function keepDraftText(place, text) {
  keep(TEXT, name(place), text);
}

/** @param {Place} place @param {import("./attachments.js").Upload[]} uploads */
export function keepDraftFiles(place, uploads) {
  keep(FILES, name(place), uploads.length === 0 ? "" : JSON.stringify(uploads));
}

/** Return the place of a draft. @param {string | undefined} branch undefined while it is not known @returns {Place} */
export function placeOf(session, branch) {
  if (branch === undefined) return { session, branch: read(BRANCH, session) };
  if (session !== null) keep(BRANCH, session, branch);
  return { session, branch };
}

/** Remove the drafts of all versions of a session. */
export function dropDrafts(session) {
  for (const kind of [TEXT, FILES, BRANCH]) {
    for (const key of keys()) if (key === kind + session || key.startsWith(`${kind}${session} `)) keep("", key, "");
  }
}

/** Ids have no spaces. */
function name({ session, branch }) {
  return branch ? `${session} ${branch}` : (session ?? "");
}

function keys() {
  try {
    return [...unstored.keys(), ...Object.keys(sessionStorage)];
  } catch {
    return [...unstored.keys()];
  }
}

function read(kind, owner) {
  const key = kind + owner;
  try {
    return unstored.get(key) ?? sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

function keep(kind, owner, value) {
  const key = kind + owner;
  unstored.delete(key);
  try {
    if (value) sessionStorage.setItem(key, value);
    else sessionStorage.removeItem(key);
  } catch {
    unstored.set(key, value);
  }
}
