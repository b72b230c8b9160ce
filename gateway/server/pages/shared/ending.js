/**
 * Ends of logins. While the gateway cannot be reached, the page shows nothing but that, and ends the login as soon as
 * it can; the next page of this browser does so too.
 */
import { choice, choose } from "./choices.js";
import { h } from "./dom.js";
import { t } from "./language.js";
import { failedState } from "./states.js";

const KEY = "trunkline.ending.";
const AGAIN_MS = 3_000;

/**
 * End a login however long it takes. Raises what `end` raises.
 * @param {string} page whose login it is @param {() => Promise<boolean>} end returns false while the gateway cannot be reached
 * @param {() => void} [waits] called when it cannot be reached at first
 */
export async function endLogin(page, end, waits = () => {}) {
  choose(KEY + page, "waits");
  try {
    for (let tries = 0; !(await end()); tries++) {
      if (tries === 0) waits(), document.body.replaceChildren(h("main", { class: "ending" }, failedState({ title: t("ending.title"), text: t("ending.text") })));
      await new Promise((done) => (setTimeout(done, AGAIN_MS), addEventListener("online", done, { once: true })));
    }
  } finally {
    choose(KEY + page, "");
  }
}

/** End the login that a user ended while the gateway could not be reached. @param {string} page @param {() => Promise<boolean>} end */
export async function finishEnding(page, end) {
  if (choice(KEY + page)) await endLogin(page, end);
}
