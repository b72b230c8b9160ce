/** Asking a provider again before the end of its pause. */
import { announce } from "/shared/announcer.js";
import { confirmed } from "/shared/confirm_dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { counted, since } from "./amounts.js";
import { send } from "./api.js";

/** Return whether calls skip a provider after failures, or wait for its rate limit. */
export function isPaused(state) {
  return Boolean(state) && (state.circuit === "open" || state.held_keys > 0);
}

/** Say what asking a provider now does, and do it once the user confirms. @param {import("./app.js").Context} context @returns {Promise<boolean>} whether it was done */
export async function tryNow({ id, name, circuit, failures, held_keys: held, until, waiting }, context) {
  const time = until ? since(until) : "";
  const texts = [circuit === "open" && t("now.try_circuit", { name, time, failures: counted(failures) }), held > 0 && t("now.try_limit", { name, time, waiting: counted(waiting) })];
  if (!(await confirmed(t("now.try_title", { name }), texts.filter(Boolean).join(" "), t("states.again"), "primary"))) return false;
  try {
    await send("POST", `/api/models/providers/${encodeURIComponent(id)}/try`);
    announce([h("p", {}, t("now.try_done", { name }))]);
    return true;
  } catch (error) {
    context.notify(error.message);
    return false;
  }
}
