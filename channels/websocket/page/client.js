/**
 * Client of the gateway: one method per user action, which sends the frames for it. It holds the state and
 * calls `onChange` with each new state.
 */
import { changeSession, deleteSession, editMessage, forkSession, isDenied, listBranches, listChildren, listMessages, listSessions, regenerateAnswer, settleApproval, showSession, signIn, switchVersion } from "./api.js";
import { Connection } from "./connection.js";
import { dropDrafts } from "./drafts.js";
import { isSessionId, newId } from "/shared/ids.js";
import { t } from "/shared/language.js";
import { plainText } from "./message_state.js";
import { Outbox } from "./outbox.js";
import { initialState, isTask, reduce, sessionInfo } from "./state.js";
import { holeOf, shownOf } from "./thread_state.js";

const TRY_AGAIN_MS = 2_000;
/** Most characters of files in a frame, which may have 1 MB. */
const MOST_INLINE = 700_000;
/** Most messages that are fetched at once: from before the first one, and in a gap. */
const [PAGE, MOST] = [100, 1_000];

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
  /** For each session, the newest request for its versions. */
  #branchesAsked = new Map();

  /** @param {(state: import("./state.js").State, action: object) => void} onChange */
  constructor(onChange) {
    this.state = initialState();
    this.onChange = onChange;
  }

  start() {
    this.#outbox.watch(() => this.#showOutbox());
    this.#showOutbox();
    this.#connection.open();
    // Other tabs and devices have begun conversations that this one does not follow.
    document.addEventListener("visibilitychange", () => document.hidden || this.state.connection !== "online" || this.refreshSessions());
  }

  /** Send and receive nothing any more. */
  disconnect() {
    this.#connection.close();
  }

  /** Open a session, or a new chat (null). */
  open(session) {
    this.#dispatch({ type: "open", session });
    if (session === null) return;
    if (!isSessionId(session)) this.#dispatch({ type: "missing", session });
    else if (this.state.connection === "online") this.#subscribe(session);
  }

  /** Send a message; the outbox keeps it until the server confirms it. @returns {string} its session */
  send(text, uploads = [], parts = []) {
    const session = this.state.current ?? newId();
    const seen = this.state.threads[session]?.seq ?? 0;
    const entry = { client_msg_id: newId(), session, text, parts, uploads, seen, at: Date.now() };
    this.#outbox.put(entry);
    this.#showOutbox();
    if (this.state.connection === "online") this.#transmit(entry);
    return session;
  }

  /** Send a refused message again, with a new id. */
  retry(entry) {
    this.discard(entry.client_msg_id);
    this.send(entry.text, entry.uploads, entry.parts);
  }

  /** Send the question of a failed answer again, as a new message. */
  askAgain(answerId) {
    const question = questionOf(shownOf(this.state.threads[this.state.current]), answerId);
    if (!question) return this.notify(t("ask.gone"));
    const text = plainText(question);
    const parts = question.parts.filter((part) => part.type === "image" || part.type === "file").map(({ html, ...part }) => part);
    if (text.endsWith("[voice message]")) return this.notify(t("ask.recording"));
    // A frame has room for small files alone; the server has the others.
    if (JSON.stringify(parts).length > MOST_INLINE) return this.regenerate(answerId);
    this.send(text, [], parts);
  }

  /** Ask the gateway why a message got this answer, or none. */
  askWhy(answerId) {
    const question = questionOf(shownOf(this.state.threads[this.state.current]), answerId);
    if (!question) return this.notify(t("ask.gone"));
    this.send(`/why ${question.id}`);
  }

  discard(clientMsgId) {
    this.#outbox.remove(clientMsgId);
    this.#showOutbox();
  }

  /** Load an older message of the open session. Return whether it was requested. */
  showMessage(message) {
    return this.#connection.send({ type: "show", session: this.state.current, message_id: message });
  }

  /** Fetch messages of the open session from before the first one, or those in its gap; once at a time. */
  async fetchEarlier(inGap) {
    const session = this.state.current;
    const thread = this.state.threads[session];
    const { before, after } = holeOf(thread, inGap);
    if (["earlier", "gap"].includes(thread.fetching) || before === null) return;
    this.#dispatch({ type: "fetching", session, fetching: inGap ? "gap" : "earlier" });
    const page = await listMessages(session, before, after, inGap ? MOST : PAGE);
    this.#dispatch({ type: "fetched", session, inGap, before, page });
    if (page === null) this.notify(t("thread.failed"));
  }

  stop() {
    const sent = this.#connection.ask({ type: "abort", session: this.state.current });
    if (!sent) this.notify(t("offline.stop"));
  }

  async decide(approvalId, decision) {
    // An "always" may ask who the user is, which only a request can.
    if (decision === "always" || decision[0] === "always") return this.#report(await settleApproval(this.state.current, approvalId, decision));
    const frame = { type: "approval", session: this.state.current, approval_id: approvalId, decision };
    if (!this.#connection.ask(frame)) this.notify(t("offline.decide"));
  }

  /** Send the press of a key that a plugin handles. */
  press(key) {
    if (!this.#connection.ask({ type: "key", key })) this.notify(t("offline.press"));
  }

  /** Request completions of a mention from plugins. */
  complete(question) {
    this.#connection.send({ type: "complete_mention", ...question });
  }

  async remove(session) {
    const refusal = await deleteSession(session);
    if (refusal) this.notify(refusal);
    else {
      dropDrafts(session);
      this.#hasChanged(session);
      this.#dispatch({ type: "removed", session });
    }
  }

  /** Copy the open session up to a message. @returns {Promise<string | null>} the session of the copy */
  async fork(message) {
    const info = await forkSession(this.state.current, message);
    if (info === null) {
      this.notify(t("fork.failed"));
      return null;
    }
    this.#hasChanged(info.id);
    this.#dispatch({ type: "info", info });
    return info.id;
  }

  /** Send a text in place of a message of the open session. @returns {Promise<boolean>} whether it was accepted */
  edit(message, text) {
    return this.#replace((session) => editMessage(session, message, text));
  }

  /** Ask for another answer in the open session. */
  regenerate(answer) {
    return this.#replace((session) => regenerateAnswer(session, answer));
  }

  /** Show another version of the open session. */
  switchTo(version) {
    return this.#replace((session) => switchVersion(session, version));
  }

  /** Replace the shown version of the open session. What is typed from now on belongs to the new one. */
  async #replace(change) {
    const session = this.state.current;
    this.#dispatch({ type: "replacing", session, replacing: true });
    const refusal = await change(session);
    if (refusal) this.#dispatch({ type: "replacing", session, replacing: false });
    this.#report(refusal);
    return !refusal;
  }

  #report(refusal) {
    if (refusal) this.notify(refusal);
  }

  /** Follow the nested run whose log was opened. @param {import("./task_log.js").TaskLog} log */
  async watch(log) {
    if (!log.dataset.session) {
      const children = (await listChildren(log.parent ?? this.state.current)) ?? [];
      const found = children.findLast((info) => info.task?.call_id === log.call);
      if (!found) return this.notify(t("task.later"));
      log.dataset.session = found.id;
    }
    if (this.state.connection === "online") this.#subscribe(log.dataset.session);
    // Also for a session that is followed already, whose thread may not change any more.
    this.#dispatch({ type: "watch" });
  }

  /** @returns {Promise<string>} the error, or "" if the token was accepted */
  async authenticate(token) {
    const refusal = await signIn(token);
    if (!refusal) this.#connection.open();
    return refusal;
  }

  /** Ask for the token if the login has ended: the socket outlives it, and no request is answered. */
  async denied() {
    if (this.state.connection === "online" && (await isDenied())) this.#dispatch({ type: "connection", status: "denied" });
  }

  notify(text) {
    this.#dispatch({ type: "notice", text });
  }

  /** Rename a session, or pin it. @param {{title?: string, pinned?: boolean}} change */
  async change(session, change) {
    const info = await changeSession(session, change);
    if (info === null) return this.notify(t("change.failed"));
    this.#hasChanged(session);
    this.#dispatch({ type: "info", info });
  }

  /** List other conversations. @param {"own" | "all" | "unnamed"} scope */
  show(scope) {
    this.#dispatch({ type: "scope", scope });
    this.refreshSessions();
  }

  /** Fetch the first page of the list. */
  refreshSessions() {
    return this.#list(null);
  }

  /** Fetch the next page of the list, once at a time. */
  moreSessions() {
    const { next, loading } = this.state.listing;
    if (next !== null && !loading) this.#list(next);
  }

  async #list(before) {
    const { scope } = this.state.listing;
    const changed = new Set();
    this.#listings.add(changed);
    this.#dispatch({ type: "listing", loading: true });
    const page = await listSessions(scope, this.state.server.channel, before);
    this.#listings.delete(changed);
    if (scope === this.state.listing.scope) this.#dispatch({ type: "sessions", page, before, changed });
  }

  #hasChanged(session) {
    this.#listings.forEach((changed) => changed.add(session));
  }

  #receive(frame) {
    this.#dispatch({ type: "frame", frame, at: Date.now() });
    if (frame.type === "session" || frame.type === "ack") this.#hasChanged(frame.session);
    // The frame tells the model; the agent may have changed with it.
    if (frame.type === "session" && frame.model !== undefined) this.#refresh(frame.session);
    if (frame.type === "ready") this.#resume();
    if (frame.type === "ack") this.#acknowledged(frame);
    if (frame.type === "replayed") {
      this.#describe(frame.session);
      this.#listBranches(frame.session);
    }
    if (frame.type === "error" && frame.client_msg_id) this.#refused(frame);
  }

  /** Fetch a session whose model is unknown: the list has only the newest sessions. */
  async #describe(session) {
    if (sessionInfo(this.state, session)?.model) return;
    const info = await showSession(session);
    const held = sessionInfo(this.state, session);
    // Older than the frames that arrived meanwhile.
    if (info && !held?.model) this.#dispatch({ type: "info", info: { ...info, ...knownFields(held) } });
  }

  /** Fetch the versions of a session. Every change of them sends its log again. */
  async #listBranches(session) {
    if (isTask(session)) return;
    const request = {};
    this.#branchesAsked.set(session, request);
    const branches = await listBranches(session);
    // An older response does not replace a newer one.
    if (branches && this.#branchesAsked.get(session) === request) this.#dispatch({ type: "branches", session, branches });
  }

  async #refresh(session) {
    const info = await showSession(session);
    if (info) this.#dispatch({ type: "info", info: { id: session, agent: info.agent } });
  }

  /** On a new socket, subscribe again after the last seen events, then send the unconfirmed messages. */
  #resume() {
    this.#subscribed.clear();
    const { threads, current, sessions } = this.state;
    const live = Object.keys(threads).filter((id) => threads[id].seq > 0);
    const known = current !== null && isSessionId(current) && (sessions.some((info) => info.id === current) || !this.#isNew(current));
    for (const session of new Set(known ? [...live, current] : live)) this.#subscribe(session);
    this.state.outbox.filter((entry) => !entry.failed).forEach((entry) => this.#transmit(entry));
    this.refreshSessions();
  }

  /** Return whether the server may not know a session, because its first message was not confirmed. */
  #isNew(session) {
    const unsent = this.state.outbox.filter((entry) => entry.session === session);
    return unsent.length > 0 && unsent.every((entry) => !entry.seen);
  }

  #subscribe(session, again = false) {
    if (this.#subscribed.has(session) && !again) return;
    this.#subscribed.add(session);
    this.#connection.send({ type: "resume", session, after: this.state.threads[session]?.seq ?? 0 });
  }

  #transmit({ client_msg_id, session, text, parts, uploads = [], seen = 0 }) {
    this.#subscribed.add(session);
    this.#connection.ask({ type: "message", client_msg_id, session, text, seen, ...(parts.length ? { parts } : {}), ...(uploads.length ? { uploads: uploads.map(({ id }) => id) } : {}) });
  }

  #acknowledged(ack) {
    if (ack.refused) return this.#refused(ack);
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

/** Return the message that an answer is for. */
function questionOf(thread, answerId) {
  const before = thread.order.slice(0, thread.order.indexOf(answerId)).map((id) => thread.messages[id]);
  return before.findLast((message) => message.role === "user");
}

/** Return the fields of a session that are known. */
function knownFields(info) {
  return Object.fromEntries(Object.entries(info ?? {}).filter(([, value]) => value !== undefined && value !== null));
}
