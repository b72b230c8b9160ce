/**
 * One live stream per browser: the tab that holds a lock reads it and sends its events to the others, because a
 * browser opens six connections to a server only. Without locks (plain http) each tab reads its own.
 */
import { read } from "./api.js";
import { applied } from "./now_state.js";

const NAME = "trunkline.now";
const EVENTS = ["snapshot", "turn", "health", "circuit", "queue", "question", "spend"];
/** Milliseconds before the stream is opened again after the gateway closed it. */
const AGAIN_MS = 3_000;

/**
 * @typedef {(state: import("./now_state.js").State | null, live: boolean, problem: string) => void} Follow `live` is false
 *   while the connection is lost, and `problem` says why the state could not be read
 */

export class NowStream {
  #follow;
  #channel = new BroadcastChannel(NAME);
  #over = new AbortController();
  /** @type {import("./now_state.js").State | null} */
  #state = null;
  #live = false;
  #leads = false;
  /** @type {EventSource | null} */
  #source = null;

  /** @param {Follow} follow called with each state */
  constructor(follow) {
    this.#follow = follow;
    this.#channel.addEventListener("message", ({ data }) => this.#told(data));
    this.#channel.postMessage({ type: "hello" });
    const leads = () => this.#lead();
    if (navigator.locks) navigator.locks.request(NAME, { signal: this.#over.signal }, leads).catch(ignoreAbort);
    else leads();
  }

  close() {
    this.#over.abort();
    this.#source?.close();
    this.#channel.close();
  }

  /** Read the stream until this tab closes it; then the next tab gets the lock. */
  #lead() {
    this.#leads = true;
    this.#open();
    return new Promise((done) => this.#over.signal.addEventListener("abort", () => (this.#source?.close(), done())));
  }

  async #open() {
    if (this.#over.signal.aborted) return;
    try {
      this.#pass("snapshot", await read("/api/now", {}, { signal: this.#over.signal }));
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      return this.#lost(error.message);
    }
    const source = (this.#source = new EventSource(`/api/now/events?${new URLSearchParams({ after: this.#state.id })}`));
    for (const type of EVENTS) source.addEventListener(type, ({ data }) => this.#source === source && this.#pass(type, JSON.parse(data)));
    source.addEventListener("open", () => this.#pass("live", true));
    // A closed stream does not say why: reading the snapshot again does, and finds out that the login ended.
    source.addEventListener("error", () => (source.close(), this.#lost()));
  }

  #lost(problem = "") {
    this.#pass("live", false, problem);
    const timer = setTimeout(() => this.#open(), AGAIN_MS);
    this.#over.signal.addEventListener("abort", () => clearTimeout(timer));
  }

  /** Take an event and tell the other tabs. */
  #pass(type, data, problem) {
    this.#take(type, data, problem);
    if (this.#leads && navigator.locks) this.#channel.postMessage({ type, data, problem });
  }

  #told({ type, data, problem }) {
    if (type === "hello") {
      if (!this.#leads || this.#state === null) return;
      this.#channel.postMessage({ type: "snapshot", data: this.#state });
      this.#channel.postMessage({ type: "live", data: this.#live });
    } else if (!this.#leads) this.#take(type, data, problem);
  }

  #take(type, data, problem = "") {
    if (type === "live") this.#live = data;
    else this.#state = applied(this.#state, type, data);
    if (type === "snapshot") this.#live = true;
    this.#follow(this.#state, this.#live, problem);
  }
}

function ignoreAbort(error) {
  if (error.name !== "AbortError") throw error;
}
