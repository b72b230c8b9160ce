/** Answering or dropping messages: a dry run that lists them, one confirmation of that list, and its progress. */
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
 * @typedef {{plan: string, expires_at: number, messages: {id: string, session: string, at: number, ok: boolean, reason?: string, text?: string}[], estimated_nano_usd: number | null, omitted: number}} Plan
 * @typedef {{state: "running" | "done", replayed: number, dropped: number, skipped: number, left: number}} Progress
 */

/** Answer messages again. @param {string} path of the dry run @param {() => void} done called after the messages were taken up */
export function answerAgain(path, done) {
  return openPlan("replay", (old) => send("POST", `${path}?lang=${language}${old ? "&old=true" : ""}`), done);
}

/**
 * Answer dead letters again, or drop them.
 * @param {{ids?: string[], cause?: string, all?: boolean}} choice @param {"replay" | "drop"} action @param {() => void} done
 */
export function planLetters(choice, action, done) {
  return openPlan(action, (old) => send("POST", `/api/dead/plan?lang=${language}`, { ...choice, action, old }), done);
}

async function openPlan(action, ask, done) {
  const drops = action === "drop";
  const body = h("div", { class: "replay", "aria-live": "polite" }, h("p", {}, t("replay.asking")));
  const dialog = openDialog(t(drops ? "drop.title" : "replay.title"), body);
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
    show(await ask(old), old);
  }

  /** @param {Plan} list @param {boolean} old whether it has messages that are older than a day */
  function show({ plan: id, expires_at: until, messages, estimated_nano_usd: cost, omitted }, old) {
    const ready = messages.filter(({ ok }) => ok).length;
    const confirm = h("button", { type: "button", class: drops ? "danger" : "primary", disabled: ready === 0 }, t(drops ? "drop.confirm" : "replay.confirm", { count: counted(ready) }));
    const cancel = close(t("dialog.cancel"));
    confirm.addEventListener("click", () => attempt(() => ((confirm.disabled = true), follow(id))));
    const wider = h("input", { type: "checkbox", id: "replay-old", onchange: (event) => attempt(() => plan(event.target.checked)) });
    wider.checked = old;
    const price = drops ? t("drop.note") : cost === null ? t("replay.no_price") : t("replay.price", { cost: money(cost / 1e9) });
    const left = messages.length - ready;
    const said = [t(drops ? "drop.plan" : "replay.plan", { count: counted(ready) }), price, t("replay.until", { time: clock(until) }), left > 0 && t("replay.left", { count: counted(left) }), omitted > 0 && t("replay.omitted", { count: counted(omitted) })];
    body.replaceChildren(
      h("p", {}, said.filter(Boolean).join(" ")),
      h("ul", { class: "plan", tabindex: "0", "aria-label": t("replay.list") }, ...messages.slice(0, MOST).map((message) => row(message, drops)), messages.length > MOST && h("li", { class: "muted" }, t("replay.more", { count: counted(messages.length - MOST) }))),
      ...(drops ? [] : [h("p", {}, h("label", { for: "replay-old" }, wider, ` ${t("replay.old")}`))]),
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
      const { state, replayed, dropped, skipped, left } = await send("POST", `/api/why/plans/${encodeURIComponent(id)}`);
      said.textContent = [t(drops ? "drop.done" : state === "done" ? "replay.done" : "replay.running", { count: counted(drops ? dropped : replayed), left: counted(left) }), skipped ? t("replay.skipped", { count: counted(skipped) }) : ""].filter(Boolean).join(" ");
      done();
      if (state === "done") return; // also after the dialog is closed: the list below it changes
      await new Promise((later) => setTimeout(later, PROGRESS_MS));
    }
  }
}

function row({ id, session, at, ok, reason = "", text = "" }, drops) {
  const state = ok ? t(drops ? "drop.ready" : "replay.ready") : reason;
  return h("li", { "data-ok": String(ok) }, h("a", { href: addressOf("why", [id]) }, h("code", {}, shortId(id))), h("span", { class: "muted" }, [session && shortId(session), moment(at)].filter(Boolean).join(" · ")), text && h("span", { class: "said clip" }, text), h("span", { class: ok ? (drops ? "bad" : "good") : "warn" }, state));
}
