/**
 * The socket to the gateway: opens it, notices when it died, opens it again.
 *
 * Calls `onFrame(frame)` for every frame and `onStatus(status)` with "connecting", "online" (the server said
 * ready), "waiting" (for the next try) or "denied" (a token is needed).
 */

const PROTOCOL = "trunkline.v1.html";
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const PING_EVERY_MS = 20_000;
const SILENCE_MS = 45_000;
const DENIED = 4001;

export class Connection {
  #socket = null;
  #failures = 0;
  #retry = 0;
  #heardAt = 0;
  #denied = false;

  /** @param {{isDenied: () => Promise<boolean>, onFrame: Function, onStatus: Function}} wiring */
  constructor({ isDenied, onFrame, onStatus }) {
    Object.assign(this, { isDenied, onFrame, onStatus });
    setInterval(() => this.#beat(), PING_EVERY_MS);
    addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.#hurry());
  }

  /** Open a new socket now, whatever the state: at the start, and after the user gave a token. */
  open() {
    clearTimeout(this.#retry);
    this.#denied = false;
    this.onStatus("connecting");
    const socket = new WebSocket(endpoint(), PROTOCOL);
    const previous = this.#socket;
    this.#socket = socket;
    previous?.close();
    socket.onmessage = (event) => this.#receive(socket, event.data);
    socket.onclose = (event) => this.#closed(socket, event.code);
  }

  /** Send a frame; false if there is no open socket. */
  send(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #receive(socket, data) {
    if (socket !== this.#socket) return;
    this.#heardAt = Date.now();
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

  /** Twice as long after every failure, and never in step with the other clients. */
  #wait() {
    const most = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    return most * (0.5 + Math.random() / 2);
  }

  #hurry() {
    if (this.#socket === null && !this.#denied) this.open();
  }

  /** A dead network does not close a socket; silence is how it shows. */
  #beat() {
    if (!this.send({ type: "ping" })) return;
    if (Date.now() - this.#heardAt > SILENCE_MS) this.#socket.close();
  }
}

/** Always where the page came from: nothing in its address can point it elsewhere. */
function endpoint() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
}
