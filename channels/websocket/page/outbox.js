/**
 * Messages that the server has not confirmed. They survive a reload and a lost connection, and are sent again
 * with the same id, which the server answers once.
 *
 * @typedef {import("./state.js").OutboxEntry} OutboxEntry
 */

const PREFIX = "trunkline.outbox.";

export class Outbox {
  /** Fallback for messages that the browser does not store (private mode, quota); lost with the page. */
  #unstored = new Map();

  /** @param {OutboxEntry} entry */
  put(entry) {
    try {
      localStorage.setItem(PREFIX + entry.client_msg_id, JSON.stringify(entry));
    } catch {
      this.#unstored.set(entry.client_msg_id, entry);
    }
  }

  remove(clientMsgId) {
    this.#unstored.delete(clientMsgId);
    try {
      localStorage.removeItem(PREFIX + clientMsgId);
    } catch {
      // Storage is disabled, so it has no messages.
    }
  }

  /** @returns {OutboxEntry[]} in the order they were written */
  entries() {
    return [...stored(), ...this.#unstored.values()].sort((a, b) => a.at - b.at);
  }

  /** Register a callback for changes by other tabs. */
  watch(changed) {
    addEventListener("storage", (event) => event.key?.startsWith(PREFIX) && changed());
  }
}

function stored() {
  try {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
    return keys.map((key) => JSON.parse(localStorage.getItem(key)));
  } catch {
    return [];
  }
}
