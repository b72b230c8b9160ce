/** List of the calls of the app, newest first, with their problems. */

import { make } from "/_fake/page/message.js";

export function callsView({ calls, problems }) {
  const title = problems.length ? `${problems.length} problems` : "No problems";
  return [make("h2", [], `${calls.length} calls · ${title}`), ...calls.toReversed().map(callView)];
}

function callView(call) {
  const item = make("details", [call.problem && "wrong"]);
  const line = make("summary");
  const outcome = call.answer?.error ?? call.status;
  line.append(make("span", [], call.method), make("span", [], String(outcome)));
  item.append(line);
  if (call.problem) item.append(make("p", [], call.problem));
  item.append(make("pre", [], JSON.stringify(call.arguments, null, 1)));
  return item;
}
