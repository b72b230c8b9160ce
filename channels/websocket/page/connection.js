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
/** The same while the user waits: something was sent, or the page is shown again. */
const SHORT_SILENCE_MS = 6_000;
/** The same after the browser reported that it has no network; a gateway on this machine still answers. */
const OFFLINE_SILENCE_MS = 2_000;
/** Longest time until a socket is open, and until a request says whether the login has ended. */
const OPENING_MS = 15_000;
/** Most characters of a frame that arrives within the short silence, also on a slow line. */
const SMALL_FRAME = 20_000;
const DENIED = 4001;

export class Connection {
  #socket = null;
  #failures = 0;
  #retry = 0;
  #checking = 0;
  /** When the first ping was sent that is not answered; 0 if none is. */
  #askedAt = 0;
  #denied = false;

  /** @param {{isDenied: (signal?: AbortSignal) => Promise<boolean>, onFrame: Function, onStatus: Function}} wiring */
  constructor({ isDenied, onFrame, onStatus }) {
    Object.assign(this, { isDenied, onFrame, onStatus });
    setInterval(() => this.#beat(), PING_EVERY_MS);
    addEventListener("online", () => this.#hurry());
    addEventListener("offline", () => this.check(OFFLINE_SILENCE_MS));
    document.addEventListener("visibilitychange", () => document.hidden || this.#hurry());
  }

  /** Close the connection, which is not opened again. */
  close() {
    clearTimeout(this.#retry);
    this.open = () => {};
    this.#socket?.close();
    this.#socket = null;
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
    setTimeout(() => socket.readyState === WebSocket.CONNECTING && this.#drop(socket), OPENING_MS);
    socket.onmessage = (event) => this.#receive(socket, event.data);
    socket.onclose = (event) => this.#closed(socket, event.code);
  }

  /** Send a frame. Return false if no socket is open. */
  send(frame) {
    return this.#send(JSON.stringify(frame));
  }

  /** Send a frame whose effect the user waits for, and find out soon whether it arrives. Return false if no socket is open. */
  ask(frame) {
    const text = JSON.stringify(frame);
    const sent = this.#send(text);
    if (sent && text.length <= SMALL_FRAME) this.check();
    return sent;
  }

  #send(text) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(text);
    return true;
  }

  /** Find out soon whether the connection works. @param {number} [silence] longest one, in milliseconds */
  check(silence = SHORT_SILENCE_MS) {
    const socket = this.#socket;
    if (!this.send({ type: "ping" })) return;
    const askedAt = (this.#askedAt ||= Date.now());
    clearTimeout(this.#checking);
    this.#checking = setTimeout(() => socket === this.#socket && this.#askedAt === askedAt && this.#drop(socket), silence);
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
    this.#denied = code === DENIED || (await this.isDenied(AbortSignal.timeout(OPENING_MS)));
    if (this.#socket !== null) return;
    if (this.#denied) this.onStatus("denied");
    else this.#retry = setTimeout(() => this.open(), this.#wait());
  }

  /** Return the next wait: doubled after each failure, with jitter so that clients do not reconnect together. */
  #wait() {
    const most = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    return most * (0.5 + Math.random() / 2);
  }

  /** Close a socket without waiting for the other side, which does not answer. */
  #drop(socket) {
    socket.close();
    this.#closed(socket);
  }

  async #hurry() {
    if (this.#socket !== null) return this.check();
    // The user may have signed in in another tab.
    if (this.#denied && (await this.isDenied(AbortSignal.timeout(OPENING_MS)))) return;
    if (this.#socket === null) this.open();
  }

  /** Detect a dead network by silence, because it does not close a socket. */
  #beat() {
    if (!this.send({ type: "ping" })) return;
    // Not since the last frame: a browser lets a hidden tab ping once a minute only.
    this.#askedAt ||= Date.now();
    if (Date.now() - this.#askedAt > SILENCE_MS) this.#drop(this.#socket);
  }
}

/** Return the websocket URL on the page's own host; nothing in the page's address can change it. */
function endpoint() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
}
