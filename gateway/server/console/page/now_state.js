/** The state of the gateway as the page knows it: a snapshot, and the changes that follow it. */

/** Turns that ended and are kept, the newest at the end. */
const MOST_ENDED = 50;

/** @typedef {Record<string, any>} State the snapshot of `/api/now`; parts that did not change stay the same objects */

/**
 * Return the state after an event. @param {State | null} state null before the first snapshot
 * @param {string} type @param {any} data @returns {State | null}
 */
export function applied(state, type, data) {
  if (type === "snapshot") return data;
  if (state === null) return null;
  switch (type) {
    case "turn":
      return { ...state, running: turned(state.running, data), activity: [...state.activity, ...data.ended].slice(-MOST_ENDED) };
    case "health":
      return { ...state, headline: data.headline, needs: data.needs, channels: replaced(state.channels, data.channels) };
    case "circuit":
      return { ...state, providers: replaced(state.providers, data.providers) };
    case "queue":
      return { ...state, queues: data };
    case "question":
      return { ...state, asked: data };
    case "spend":
      return { ...state, spend: { ...state.spend, today_usd: data.today_usd }, figures: replaced(state.figures, data.figures, "name") };
    default:
      return state; // An event of a newer gateway.
  }
}

function turned({ rows }, { total, changed, gone }) {
  const left = new Set(gone);
  const kept = replaced(rows, changed).filter(({ id }) => !left.has(id));
  return { total, rows: kept };
}

/** Return the items with those of the same key replaced, and new ones at the end. */
function replaced(items, changed, key = "id") {
  const byKey = new Map(items.map((item) => [item[key], item]));
  for (const item of changed) byKey.set(item[key], item);
  return [...byKey.values()];
}
