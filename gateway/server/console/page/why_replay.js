/** Answering messages again: a dry run that lists them, one confirmation of that list, and its progress. */
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { language, t } from "/shared/language.js";
import { clock, counted, money, moment } from "./amounts.js";
import { send } from "./api.js";
import { addressOf } from "./router.js";
import { shortId } from "./words.js";

/** Rows that are shown of a long list; the sentence above it counts all. */
const MOST = 100;
const PROGRESS_MS = 1_000;

/**
 * @typedef {{plan: string, expires_at: number, messages: {id: string, session: string, at: number, ok: boolean, reason?: string}[], estimated_nano_usd: number | null}} Plan
 * @typedef {{state: "running" | "done", replayed: number, skipped: number, left: number}} Progress
 */

/** Ask for a list and show it. @param {string} path of the dry run @param {() => void} done called after the messages were taken up */
export async function answerAgain(path, done) {
  const body = h("div", { class: "replay", "aria-live": "polite" }, h("p", {}, t("replay.asking")));
  const dialog = openDialog(t("replay.title"), body);
  // The button that opened it may be gone, since the verdict changed.
  dialog.addEventListener("close", () => document.querySelector("#main h1")?.focus());
  const close = (label) => h("button", { type: "button", onclick: () => dialog.close() }, label);
  await attempt(() => plan(false));

  async function attempt(act) {
    try {
      await act();
    } catch (error) {
      body.replaceChildren(h("p", { class: "bad", role: "alert" }, error.message), h("div", { class: "choices" }, close(t("dialog.close"))));
    }
  }

  async function plan(old) {
    show(await send("POST", `${path}?lang=${language}${old ? "&old=true" : ""}`), old);
  }

  /** @param {Plan} list @param {boolean} old whether it has messages that are older than a day */
  function show({ plan: id, expires_at: until, messages, estimated_nano_usd: cost }, old) {
    const ready = messages.filter(({ ok }) => ok).length;
    const confirm = h("button", { type: "button", class: "primary", disabled: ready === 0 }, t("replay.confirm", { count: counted(ready) }));
    const cancel = close(t("dialog.cancel"));
    confirm.addEventListener("click", () => attempt(() => ((confirm.disabled = true), follow(id))));
    const wider = h("input", { type: "checkbox", id: "replay-old", onchange: (event) => attempt(() => plan(event.target.checked)) });
    wider.checked = old;
    const price = cost === null ? t("replay.no_price") : t("replay.price", { cost: money(cost / 1e9) });
    const left = messages.length - ready;
    body.replaceChildren(
      h("p", {}, [t("replay.plan", { count: counted(ready) }), price, t("replay.until", { time: clock(until) }), left > 0 ? t("replay.left", { count: counted(left) }) : ""].filter(Boolean).join(" ")),
      h("ul", { class: "plan", tabindex: "0", "aria-label": t("replay.list") }, ...messages.slice(0, MOST).map(row), messages.length > MOST && h("li", { class: "muted" }, t("replay.more", { count: counted(messages.length - MOST) }))),
      h("p", {}, h("label", { for: "replay-old" }, wider, ` ${t("replay.old")}`)),
      h("div", { class: "choices" }, cancel, confirm),
    );
    cancel.focus();
  }

  /** Confirm a plan and tell its progress; confirming it again changes nothing and returns its state. */
  async function follow(id) {
    const end = close(t("dialog.close"));
    const said = h("p", {});
    body.replaceChildren(said, h("div", { class: "choices" }, end));
    end.focus();
    for (;;) {
      /** @type {Progress} */
      const { state, replayed, skipped, left } = await send("POST", `/api/why/plans/${encodeURIComponent(id)}`);
      said.textContent = [t(state === "done" ? "replay.done" : "replay.running", { count: counted(replayed), left: counted(left) }), skipped ? t("replay.skipped", { count: counted(skipped) }) : ""].filter(Boolean).join(" ");
      done();
      if (state === "done" || !dialog.isConnected) return;
      await new Promise((later) => setTimeout(later, PROGRESS_MS));
    }
  }
}

function row({ id, session, at, ok, reason = "" }) {
  return h("li", { "data-ok": String(ok) }, h("a", { href: addressOf("why", [id]) }, h("code", {}, shortId(id))), h("span", { class: "muted" }, `${shortId(session)} · ${moment(at)}`), h("span", { class: ok ? "good" : "warn" }, ok ? t("replay.ready") : reason));
}
