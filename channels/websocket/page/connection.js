/**
 * Websocket connection to the gateway, which is opened again when it breaks or goes silent.
 *
 * Calls `onFrame(frame)` for every frame and `onStatus(status)` with "connecting", "online" (the server sent
 * `ready`), "waiting" (for the next attempt) or "denied" (a token is required).
 */

const PROTOCOL = "trunkline.v1.html";
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const PING_EVERY_MS = 20_000;
/** Longest silence after a ping. */
const SILENCE_MS = 25_000;
const DENIED = 4001;

export class Connection {
  #socket = null;
  #failures = 0;
  #retry = 0;
  /** When the first ping was sent that is not answered; 0 if none is. */
  #askedAt = 0;
  #denied = false;

  /** @param {{isDenied: () => Promise<boolean>, onFrame: Function, onStatus: Function}} wiring */
  constructor({ isDenied, onFrame, onStatus }) {
    Object.assign(this, { isDenied, onFrame, onStatus });
    setInterval(() => this.#beat(), PING_EVERY_MS);
    addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.#hurry());
  }

  /** Open a new socket now, in any state: at the start, and after the user entered a token. */
  open() {
    clearTimeout(this.#retry);
    this.#denied = false;
    this.onStatus("connecting");
    const socket = new WebSocket(endpoint(), PROTOCOL);
    const previous = this.#socket;
    this.#socket = socket;
    this.#askedAt = 0;
    previous?.close();
    socket.onmessage = (event) => this.#receive(socket, event.data);
    socket.onclose = (event) => this.#closed(socket, event.code);
  }

  /** Send a frame. Return false if no socket is open. */
  send(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #receive(socket, data) {
    if (socket !== this.#socket) return;
    this.#askedAt = 0;
    const frame = JSON.parse(data);
    if (frame.type === "ready") {
      this.#failures = 0;
      this.onStatus("online");
    }
    this.onFrame(frame);
  }

  async #closed(socket, code) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    this.onStatus("waiting");
    this.#denied = code === DENIED || (await this.isDenied());
    if (this.#socket !== null) return;
    if (this.#denied) this.onStatus("denied");
    else this.#retry = setTimeout(() => this.open(), this.#wait());
  }

  /** Return the next wait: doubled after each failure, with jitter so that clients do not reconnect together. */
  #wait() {
    const most = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    return most * (0.5 + Math.random() / 2);
  }

  async #hurry() {
    if (this.#socket !== null) return;
    // The user may have signed in in another tab.
    if (this.#denied && (await this.isDenied())) return;
    if (this.#socket === null) this.open();
  }

  /** Detect a dead network by silence, because it does not close a socket. */
  #beat() {
    if (!this.send({ type: "ping" })) return;
    // Not since the last frame: a browser lets a hidden tab ping once a minute only.
    this.#askedAt ||= Date.now();
    if (Date.now() - this.#askedAt > SILENCE_MS) this.#socket.close();
  }
}

/** Return the websocket URL on the page's own host; nothing in the page's address can change it. */
function endpoint() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
}
