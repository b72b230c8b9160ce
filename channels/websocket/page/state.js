/**
 * State of the page, and the pure function that computes the next state. Views only read it.
 *
 * @typedef {import("./thread_state.js").Thread} Thread
 * @typedef {{input_tokens?: number, output_tokens?: number, cost?: number}} Usage
 * @typedef {{id: string, title: string | null, updated_at: number, usage?: Usage, status?: string, model?: string, agent?: string, channel?: string, pinned?: boolean}} SessionInfo
 * @typedef {object} OutboxEntry a message that the server has not confirmed
 * @property {string} client_msg_id
 * @property {string} session
 * @property {string} text
 * @property {object[]} parts
 * @property {import("./attachments.js").Upload[]} uploads files that the server has
 * @property {number} at when it was written
 * @property {string} [failed] why the server refused it
 * @typedef {object} State
 * @property {"connecting" | "online" | "waiting" | "denied"} connection
 * @property {string | null} current the open session; null is a new chat
 * @property {Readonly<Record<string, Thread>>} threads
 * @property {Readonly<Record<string, Record<string, import("./api.js").Version[]>>>} branches for each session, the versions by the message that begins the shown one
 * @property {readonly SessionInfo[]} sessions newest first
 * @property {{scope: "own" | "all" | "unnamed", next: string | null, loading: boolean, known: boolean, failed: boolean}} listing what the list shows, where its next page begins, whether a page was read, and whether the last one could not be
 * @property {readonly OutboxEntry[]} outbox in order of writing
 * @property {{user: string, model: string, version: string, channel: string, upload_bytes: number, frame_bytes: number, signed_in: boolean, commands: {name: string, description: string}[]}} server
 * @property {{status: object[], shortcuts: string[], triggers: string[], panels: object[]}} contributed contributions of plugins
 * @property {object | null} completions completions of the mention that is being typed
 * @property {string | null} notice message for the user
 */
import { t } from "/shared/language.js";
import { asksApproval, plainText } from "./message_state.js";
import { emptyThread, shownOf, withAccepted, withChangedLog, withEvent, withFetched, withReplayed } from "./thread_state.js";

const UNNAMED = /^chat-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Sessions of nested runs, which are shown under the tool calls that started them. */
const TASK = /^task-[0-9a-f]{16}$/;

/** @returns {State} */
export function initialState() {
  return {
    connection: "connecting",
    current: null,
    threads: {},
    branches: {},
    sessions: [],
    listing: { scope: "own", next: null, loading: false, known: false, failed: false },
    outbox: [],
    server: { user: "", model: "", version: "", channel: "websocket", upload_bytes: 10_000_000, frame_bytes: 1_000_000, signed_in: false, commands: [] },
    contributed: { status: [], shortcuts: [], triggers: [], panels: [] },
    completions: null,
    notice: null,
  };
}

/** Return the state after an action. @param {State} state @returns {State} */
export function reduce(state, action) {
  switch (action.type) {
    case "frame":
      return withFrame(state, action.frame, action.at);
    case "connection":
      return { ...state, connection: action.status };
    case "open":
      return { ...state, current: action.session, notice: null };
    case "sessions":
      return withPage({ ...state, listing: { ...state.listing, loading: false, failed: action.page === null } }, action);
    case "scope":
      return { ...state, listing: { ...initialState().listing, scope: action.scope } };
    case "listing":
      return { ...state, listing: { ...state.listing, loading: action.loading } };
    case "info":
      return withInfo(state, action.info);
    case "missing":
      return withThread(state, action.session, () => ({ ...emptyThread(), missing: true }));
    case "fetching":
      return withThread(state, action.session, (thread) => ({ ...thread, fetching: action.fetching }));
    case "fetched":
      return withThread(state, action.session, (thread) => withFetched(thread, action));
    case "branches":
      return withListed({ ...state, branches: { ...state.branches, [action.session]: byShown(action.branches) } }, action.session, true);
    case "replacing":
      return withListed(state, action.session, !action.replacing);
    case "removed":
      return without(state, action.session);
    case "outbox":
      return { ...state, outbox: action.entries };
    case "notice":
      return { ...state, notice: action.text };
    default:
      return state;
  }
}

/** Return whether the session has a running answer. @param {State} state */
export function isRunning(state, session) {
  const thread = state.threads[session ?? ""];
  return Boolean(thread && (thread.running !== null || thread.awaiting));
}

/** Return whether the open conversation is loaded and idle, so that it can be replayed. @param {State} state */
export function canReplay(state) {
  const thread = state.threads[state.current ?? ""];
  return Boolean(thread?.loaded && thread.order.length > 1 && thread.running === null && !thread.awaiting);
}

/** Return whether an answer waits for an approval. @param {State} state */
export function isAsking(state, session) {
  const thread = state.threads[session ?? ""];
  return Boolean(thread?.running && asksApproval(thread.messages[thread.running]));
}

/** Return whether the session was requested and does not exist. @param {State} state */
export function isMissing(state, session) {
  return Boolean(state.threads[session ?? ""]?.missing);
}

/** Return whether a session belongs to another channel than this page. @param {State} state @param {SessionInfo} info */
export function isElsewhere(state, info) {
  return info.channel !== undefined && info.channel !== state.server.channel;
}

/** Return whether a session was created by a request to `/v1` without a session. @param {SessionInfo} info */
export function isUnnamed(info) {
  return info.channel === "api" && UNNAMED.test(info.id);
}

/** Return the sessions that the list shows. @param {State} state */
export function listed(state) {
  const shown = {
    own: (info) => !isElsewhere(state, info),
    all: (info) => !isUnnamed(info),
    unnamed: isUnnamed,
  };
  return state.sessions.filter((info) => !isTask(info.id) && shown[state.listing.scope](info));
}

/** Return whether a session belongs to a nested run; it takes no messages. @param {string | null} session */
export function isTask(session) {
  return TASK.test(session ?? "");
}

/** Return the model that answers in a session. @param {State} state */
export function modelOf(state, session) {
  return sessionInfo(state, session)?.model ?? state.server.model;
}

/**
 * Return a name of the version that a session shows, which stays the same when the version gets versions: the last
 * first message that replaced another one, or "" if none did; undefined while the versions are not known, or change.
 * @param {State} state @returns {string | undefined}
 */
export function branchOf(state, session) {
  if (session === null) return "";
  const places = state.threads[session]?.listed && state.branches[session];
  return places ? Object.entries(places).findLast(([shown, versions]) => versions[0].id !== shown)?.[0] ?? "" : undefined;
}

/** @param {State} state @returns {SessionInfo | undefined} */
export function sessionInfo(state, session) {
  return state.sessions.find((info) => info.id === session);
}

/** Return the name of a session: its title, else the first user message. @param {State} state */
export function titleOf(state, session) {
  if (isMissing(state, session)) return t("missing.name");
  const title = sessionInfo(state, session)?.title;
  const first = Object.values(shownOf(state.threads[session])?.messages ?? {}).find((message) => message.role === "user");
  return title || (first && plainText(first).slice(0, 80)) || t("list.untitled");
}

function withFrame(state, frame, at) {
  switch (frame.type) {
    case "ready":
      return { ...state, connection: "online", server: { ...state.server, ...frame } };
    case "ack":
      return withAck(state, frame, at);
    case "error":
      return withError(state, frame);
    case "replayed":
      return withThread(state, frame.session, (thread) => withReplayed(thread, frame));
    case "log_changed":
      return withThread(state, frame.session, (thread) => withChangedLog(thread, frame));
    case "pong":
      return state;
    case "contributions":
      return { ...state, contributed: frame };
    case "completions":
      return { ...state, completions: frame };
    case "session":
      return withSessionEvent(state, frame, at);
    default:
      return frame.session ? withThread(state, frame.session, (thread) => withEvent(thread, frame)) : state;
  }
}

function withAck(state, ack, at) {
  const entry = state.outbox.find((held) => held.client_msg_id === ack.client_msg_id);
  if (!entry) return state;
  if (ack.refused) return withFailed(state, entry.client_msg_id, t("pending.full"));
  const outbox = state.outbox.filter((held) => held !== entry);
  const accepted = withThread({ ...state, outbox }, ack.session, (thread) => withAccepted(thread, ack, entry));
  const known = sessionInfo(state, ack.session);
  return withInfo(accepted, { id: ack.session, title: known?.title ?? null, updated_at: at });
}

function withError(state, frame) {
  if (frame.session && frame.error_name === "NotFoundError") {
    const sessions = state.sessions.filter(({ id }) => id !== frame.session);
    return reduce({ ...state, sessions }, { type: "missing", session: frame.session });
  }
  if (!frame.client_msg_id) return { ...state, notice: frame.message };
  if (frame.retryable) return state;
  return withFailed(state, frame.client_msg_id, frame.message);
}

/** Return the state with a message of the outbox that the server refused. */
function withFailed(state, id, failed) {
  return { ...state, outbox: state.outbox.map((entry) => (entry.client_msg_id === id ? { ...entry, failed } : entry)) };
}

function withSessionEvent(state, frame, at) {
  const { session, title, usage, status, model } = frame;
  const known = sessionInfo(state, session) ?? { id: session, title: null, updated_at: at };
  const fresh = Object.fromEntries(Object.entries({ title, usage, status, model }).filter(([, value]) => value !== undefined));
  const next = withThread(state, session, (thread) => withEvent(thread, frame));
  return withInfo(next, { ...known, ...fresh });
}

function withThread(state, session, change) {
  const thread = state.threads[session] ?? emptyThread();
  const next = change(thread);
  return next === thread ? state : { ...state, threads: { ...state.threads, [session]: next } };
}

function withListed(state, session, listed) {
  return withThread(state, session, (thread) => ({ ...thread, listed }));
}

function withInfo(state, info) {
  const known = sessionInfo(state, info.id);
  const others = state.sessions.filter((held) => held !== known);
  return { ...state, sessions: newestFirst([...others, { ...known, ...info }]) };
}

/**
 * Apply a page of the server's list. It is older than the frames that arrived while it was fetched, so the
 * sessions that those frames changed keep their state. The first page replaces what is known, except the
 * conversations that were opened and the pages that were read after it.
 */
function withPage(state, { page, before, changed }) {
  if (page === null) return state;
  const known = new Map(state.sessions.map((info) => [info.id, info]));
  const first = before === null;
  const last = page.sessions.at(-1);
  // Without a conversation that both have, there may be others between them.
  const oldest = first && state.listing.known && page.next !== null && known.has(last.id) ? last.updated_at : 0;
  const isLater = ({ pinned, updated_at: at }) => !pinned && at < oldest;
  const kept = first ? state.sessions.filter((info) => changed.has(info.id) || info.id in state.threads || isLater(info)) : state.sessions;
  const next = kept.some(isLater) ? state.listing.next : page.next;
  const merged = new Map(kept.map((info) => [info.id, info]));
  for (const info of page.sessions) {
    const held = known.get(info.id);
    merged.set(info.id, held && changed.has(info.id) ? { ...info, ...held, title: held.title ?? info.title } : info);
  }
  return { ...state, sessions: newestFirst([...merged.values()]), listing: { ...state.listing, next, known: true } };
}

function without(state, session) {
  const { [session]: _gone, ...threads } = state.threads;
  return {
    ...state,
    threads,
    sessions: state.sessions.filter((info) => info.id !== session),
    current: state.current === session ? null : state.current,
  };
}

function byShown(branches) {
  const shown = branches.map(({ versions }) => [versions.find((version) => version.shown)?.id, versions]);
  return Object.fromEntries(shown.filter(([id]) => id));
}

function newestFirst(sessions) {
  return [...sessions].sort((a, b) => b.updated_at - a.updated_at);
}
