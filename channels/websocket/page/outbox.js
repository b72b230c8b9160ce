/**
 * Messages that the server has not confirmed. They outlive a reload and a lost connection, and are sent
 * again under the same id, which the server answers once.
 *
 * @typedef {import("./state.js").OutboxEntry} OutboxEntry
 */

const PREFIX = "trunkline.outbox.";

export class Outbox {
  /** What the browser would not store (private mode, quota) lives as long as the page. */
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
      // Storage is off altogether, so there is nothing in it.
    }
  }

  /** @returns {OutboxEntry[]} in the order they were written */
  entries() {
    return [...stored(), ...this.#unstored.values()].sort((a, b) => a.at - b.at);
  }

  /** Calls back when another tab changed what is kept. */
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
