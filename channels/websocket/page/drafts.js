/**
 * Drafts of messages, one per session; they survive a reload of the tab. Text and attachments are stored
 * separately, so that a keystroke does not store the pictures again.
 */

const TEXT = "trunkline.draft.text.";
const FILES = "trunkline.draft.files.";
/** Fallback for data that the browser does not store (private mode, quota); lost with the page. */
const unstored = new Map();

/** @param {string | null} session null is a new chat @returns {{text: string, parts: object[], audio: object | null, files: object[]}} */
export function draft(session) {
  const { parts = [], audio = null, files = [] } = JSON.parse(read(FILES, session) || "{}");
  return { text: read(TEXT, session), parts, audio, files };
}

/** @param {string | null} session */
export function keepDraftText(session, text) {
  keep(TEXT, session, text);
}

/** @param {string | null} session @param {{parts: object[], audio: object | null, files: object[], isEmpty: boolean}} attached */
export function keepDraftFiles(session, { parts, audio, files, isEmpty }) {
  keep(FILES, session, isEmpty ? "" : JSON.stringify({ parts, audio, files }));
}

function read(kind, session) {
  const key = kind + (session ?? "");
  try {
    return unstored.get(key) ?? sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

function keep(kind, session, value) {
  const key = kind + (session ?? "");
  unstored.delete(key);
  try {
    if (value) sessionStorage.setItem(key, value);
    else sessionStorage.removeItem(key);
  } catch {
    unstored.set(key, value);
  }
}
