/**
 * Client of the gateway: one method per user action, which sends the frames for it. It holds the state and
 * calls `onChange` with each new state.
 */
import { deleteSession, isDenied, listSessions, showSession, signIn } from "./api.js";
import { Connection } from "./connection.js";
import { isSessionId, newId } from "./ids.js";
import { plainText } from "./message_state.js";
import { Outbox } from "./outbox.js";
import { initialState, reduce, sessionInfo } from "./state.js";

const TRY_AGAIN_MS = 2_000;

export class Client {
  #outbox = new Outbox();
  #connection = new Connection({
    isDenied,
    onFrame: (frame) => this.#receive(frame),
    onStatus: (status) => this.#dispatch({ type: "connection", status }),
  });
  /** Sessions that this socket is subscribed to. */
  #subscribed = new Set();
  /** For each list of sessions that is being fetched, the sessions that changed during the request. @type {Set<Set<string>>} */
  #listings = new Set();

  /** @param {(state: import("./state.js").State, action: object) => void} onChange */
  constructor(onChange) {
    this.state = initialState();
    this.onChange = onChange;
  }

  start() {
    this.#outbox.watch(() => this.#showOutbox());
    this.#showOutbox();
    this.#connection.open();
  }

  /** Open a session, or a new chat (null). */
  open(session) {
    this.#dispatch({ type: "open", session });
    if (session === null) return;
    if (!isSessionId(session)) this.#dispatch({ type: "missing", session });
    else if (this.state.connection === "online") this.#subscribe(session);
  }

  /** Send a message; the outbox keeps it until the server confirms it. @returns {string} its session */
  send(text, parts, audio = null) {
    const session = this.state.current ?? newId();
    const seen = this.state.threads[session]?.seq ?? 0;
    const entry = { client_msg_id: newId(), session, text, parts, audio, seen, at: Date.now() };
    this.#outbox.put(entry);
    this.#showOutbox();
    if (this.state.connection === "online") this.#transmit(entry);
    return session;
  }

  /** Send a refused message again, with a new id. */
  retry(entry) {
    this.discard(entry.client_msg_id);
    this.send(entry.text, entry.parts, entry.audio);
  }

  /** Send the question of a failed answer again, as a new message. */
  askAgain(answerId) {
    const thread = this.state.threads[this.state.current];
    const before = thread.order.slice(0, thread.order.indexOf(answerId)).map((id) => thread.messages[id]);
    const question = before.findLast((message) => message.role === "user");
    if (!question) return this.notify("The question of this answer is not available any more. Write it again.");
    const text = plainText(question);
    const parts = question.parts.filter((part) => part.type === "image" || part.type === "file").map(({ html, ...part }) => part);
    if (text.endsWith("[voice message]")) return this.notify("A recording is not kept here. Record it again.");
    this.send(text, parts);
  }

  discard(clientMsgId) {
    this.#outbox.remove(clientMsgId);
    this.#showOutbox();
  }

  stop() {
    this.#connection.send({ type: "abort", session: this.state.current });
  }

  decide(approvalId, decision) {
    const frame = { type: "approval", session: this.state.current, approval_id: approvalId, decision };
    if (!this.#connection.send(frame)) this.notify("Not connected. Decide again when the connection is back.");
  }

  /** Send the press of a key that a plugin handles. */
  press(key) {
    this.#connection.send({ type: "key", key });
  }

  /** Request completions of a mention from plugins. */
  complete(question) {
    this.#connection.send({ type: "complete_mention", ...question });
  }

  async remove(session) {
    const refusal = await deleteSession(session);
    if (refusal) this.notify(refusal);
    else {
      this.#hasChanged(session);
      this.#dispatch({ type: "removed", session });
    }
  }

  /** @returns {Promise<string>} the error, or "" if the token was accepted */
  async authenticate(token) {
    const refusal = await signIn(token);
    if (!refusal) this.#connection.open();
    return refusal;
  }

  notify(text) {
    this.#dispatch({ type: "notice", text });
  }

  async refreshSessions() {
    const changed = new Set();
    this.#listings.add(changed);
    const sessions = await listSessions(this.state.server.channel);
    this.#listings.delete(changed);
    if (sessions) this.#dispatch({ type: "sessions", sessions, changed });
  }

  #hasChanged(session) {
    this.#listings.forEach((changed) => changed.add(session));
  }

  #receive(frame) {
    this.#dispatch({ type: "frame", frame, at: Date.now() });
    if (frame.type === "session" || frame.type === "ack") this.#hasChanged(frame.session);
    if (frame.type === "ready") this.#resume();
    if (frame.type === "ack") this.#acknowledged(frame);
    if (frame.type === "replayed") this.#describe(frame.session);
    if (frame.type === "error" && frame.client_msg_id) this.#refused(frame);
  }

  /** Fetch a session whose model is unknown: the list has only the newest sessions. */
  async #describe(session) {
    if (sessionInfo(this.state, session)?.model) return;
    const info = await showSession(session);
    if (info && !sessionInfo(this.state, session)?.model) this.#dispatch({ type: "info", info });
  }

  /** On a new socket, subscribe again after the last seen events, then send the unconfirmed messages. */
  #resume() {
    this.#subscribed.clear();
    const { threads, current, sessions } = this.state;
    const live = Object.keys(threads).filter((id) => threads[id].seq > 0);
    const known = current !== null && isSessionId(current) && (sessions.some((info) => info.id === current) || !this.#isUnsent(current));
    for (const session of new Set(known ? [...live, current] : live)) this.#subscribe(session);
    this.state.outbox.filter((entry) => !entry.failed).forEach((entry) => this.#transmit(entry));
    this.refreshSessions();
  }

  #isUnsent(session) {
    return this.state.outbox.some((entry) => entry.session === session);
  }

  #subscribe(session, again = false) {
    if (this.#subscribed.has(session) && !again) return;
    this.#subscribed.add(session);
    this.#connection.send({ type: "resume", session, after: this.state.threads[session]?.seq ?? 0 });
  }

  #transmit({ client_msg_id, session, text, parts, audio, seen = 0 }) {
    this.#subscribed.add(session);
    const spoken = audio ? { audio: { mime_type: audio.mime_type, data: audio.data } } : {};
    this.#connection.send({ type: "message", client_msg_id, session, text, seen, ...(parts.length ? { parts } : {}), ...spoken });
  }

  #acknowledged(ack) {
    this.#outbox.remove(ack.client_msg_id);
    // The answer may have begun before this socket was opened: fetch the missed events.
    if (ack.duplicate) this.#subscribe(ack.session, true);
  }

  #refused(frame) {
    const entry = this.state.outbox.find((held) => held.client_msg_id === frame.client_msg_id);
    if (!entry) return;
    if (frame.retryable) setTimeout(() => this.#transmitIfOpen(entry), TRY_AGAIN_MS);
    else this.#outbox.put(entry);
  }

  #transmitIfOpen(entry) {
    const open = this.state.outbox.some((held) => held.client_msg_id === entry.client_msg_id);
    if (open && this.state.connection === "online") this.#transmit(entry);
  }

  #showOutbox() {
    this.#dispatch({ type: "outbox", entries: this.#outbox.entries() });
  }

  #dispatch(action) {
    this.state = reduce(this.state, action);
    this.onChange(this.state, action);
  }
}
