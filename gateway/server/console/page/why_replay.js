/** Answering all messages with the same cause: a dry run that lists them, then one confirmation of that list. */
import { h } from "/shared/dom.js";
import { openDialog } from "/shared/dialog.js";
import { t } from "/shared/language.js";
import { clock, counted, money, moment } from "./amounts.js";
import { send } from "./api.js";
import { addressOf } from "./router.js";
import { shortId } from "./words.js";

/** Rows that are shown of a long list; the sentence above it counts all. */
const MOST = 100;

/** Ask for the list and show it. @param {string} key of the cause @param {() => void} done called after the messages were taken up */
export async function answerAll(key, done) {
  const body = h("div", { class: "replay", "aria-live": "polite" }, h("p", {}, t("replay.asking")));
  const dialog = openDialog(t("replay.title"), body);
  try {
    show(await send("POST", `/api/why/same-cause/${encodeURIComponent(key)}/plan`));
  } catch (error) {
    body.replaceChildren(h("p", { class: "bad", role: "alert" }, error.message));
  }

  function show(plan) {
    const ready = plan.messages.filter(({ ok }) => ok);
    const confirm = h("button", { type: "button", class: "primary", disabled: ready.length === 0 }, t("replay.confirm", { count: counted(ready.length) }));
    const cancel = h("button", { type: "button", onclick: () => dialog.close() }, t("dialog.cancel"));
    confirm.addEventListener("click", async () => {
      confirm.disabled = true;
      try {
        const result = await send("POST", `/api/why/plans/${encodeURIComponent(plan.plan)}`);
        body.replaceChildren(
          h("p", {}, t("replay.done", { count: counted(result.replayed + result.left) })),
          ...(result.skipped ? [h("p", { class: "muted" }, t("replay.skipped", { count: counted(result.skipped) }))] : []),
          h("div", { class: "choices" }, h("button", { type: "button", class: "primary", autofocus: true, onclick: () => dialog.close() }, t("dialog.close"))),
        );
        body.querySelector("button").focus();
        done();
      } catch (error) {
        body.replaceChildren(h("p", { class: "bad", role: "alert" }, error.message));
      }
    });
    const left = plan.messages.length - ready.length;
    body.replaceChildren(
      h("p", {}, t("replay.plan", { count: counted(ready.length), cost: money(plan.estimated_nano_usd / 1e9), time: clock(plan.expires_at) }), left > 0 ? ` ${t("replay.left", { count: counted(left) })}` : ""),
      h("ul", { class: "plan", tabindex: "0", "aria-label": t("replay.list") }, ...plan.messages.slice(0, MOST).map(row), plan.messages.length > MOST && h("li", { class: "muted" }, t("replay.more", { count: counted(plan.messages.length - MOST) }))),
      h("div", { class: "choices" }, cancel, confirm),
    );
    cancel.focus();
  }
}

function row({ id, session, at, ok, reason }) {
  return h("li", { "data-ok": String(ok) }, h("a", { href: addressOf("why", [id]) }, h("code", {}, shortId(id))), h("span", { class: "muted" }, `${session ? `${shortId(session)} · ` : ""}${moment(at)}`), h("span", { class: ok ? "good" : "warn" }, ok ? t("replay.ready") : reason));
}
