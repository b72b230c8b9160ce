/** Signing out: ends the login at the gateway, and leaves nothing of the user in this browser. All tabs do it. */
import { forgetLogin } from "./api.js";
import { confirmed } from "/shared/confirm_dialog.js";
import { endLogin, finishEnding } from "/shared/ending.js";
import { t } from "/shared/language.js";

/** When a user signed out last; each tab keeps what it has seen of it. */
const ENDED = "trunkline.signed_out";
/** What belongs to the user, in both storages; settings of the browser stay. */
const OWN = /^trunkline\.(draft|outbox)\./;
const WRITTEN = /^trunkline\.draft\.(text|uploads)\./;

/**
 * Sign out, after a question if messages or drafts would be lost.
 * @param {number} unsent messages that wait for the gateway @param {() => void} disconnect called if it cannot be reached
 */
export async function signOut(unsent, disconnect) {
  const lost = unsent > 0 || stored(() => Object.keys(sessionStorage).some((key) => WRITTEN.test(key)));
  if (lost && !(await confirmed(t("signout.title"), t(unsent > 0 ? "signout.unsent" : "signout.drafts"), t("signout.title")))) return;
  try {
    await endLogin("chat", forgetLogin, () => (disconnect(), forgetAll()));
  } catch {
    return document.dispatchEvent(new CustomEvent("notice", { detail: t("signout.failed") }));
  }
  forgetAll();
  leave();
}

/**
 * Finish a sign-out that waits for the gateway, forget the drafts of a user who signed out before this tab was shown
 * again, and leave when one does in another tab.
 */
export async function watchSignOut() {
  await finishEnding("chat", forgetLogin).catch(() => {});
  if (stored(() => localStorage.getItem(ENDED) !== sessionStorage.getItem(ENDED))) forget(() => sessionStorage);
  addEventListener("storage", ({ key }) => key === ENDED && leave());
}

/** Forget what belongs to the user, and let the other tabs leave. */
function forgetAll() {
  stored(() => localStorage.setItem(ENDED, String(Date.now())));
  forget(() => localStorage);
  forget(() => sessionStorage);
}

function leave() {
  forget(() => localStorage);
  forget(() => sessionStorage);
  // Nothing stays in memory, or in what the browser shows on the way back.
  document.body.replaceChildren();
  addEventListener("pageshow", () => location.reload());
  location.replace("/");
}

function forget(storage) {
  stored(() => {
    for (const key of Object.keys(storage())) if (OWN.test(key)) storage().removeItem(key);
    sessionStorage.setItem(ENDED, localStorage.getItem(ENDED) ?? "");
  });
}

/** Return the result of a function; undefined where the browser stores nothing. */
function stored(act) {
  try {
    return act();
  } catch {
    return undefined;
  }
}
