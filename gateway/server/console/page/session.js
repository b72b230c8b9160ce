/** Who uses the console: signing in and out, and proving again who it is. */
import { confirmed } from "/shared/confirm_dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { askProof, proofFields } from "/shared/proof_dialog.js";
import { ApiError, read, send } from "./api.js";

/** Codes of `/console` have eight characters, perhaps with a hyphen; tokens are longer. */
const CODE = /^[0-9a-z]{4}[- ]?[0-9a-z]{4}$/i;

/** @typedef {{account: string, role: "admin" | "viewer", reads_messages: boolean, open: boolean}} Session */

/** @returns {Promise<Session | null>} null without a valid login */
export async function readSession() {
  try {
    return await read("/api/console/session");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

/** Ask in a form for a token or a code. @param {HTMLElement} host @param {() => void} done called after a login */
export function showLogin(host, done) {
  const { field, problem, parts } = proofFields(t("login.proof"), t("login.hint"));
  const form = h(
    "form",
    { "aria-labelledby": "login-title" },
    h("img", { src: "/shared/icon.svg", alt: "", width: 40, height: 40 }),
    h("h1", { id: "login-title" }, t("login.title")),
    h("p", { class: "muted" }, t("login.text")),
    ...parts,
    h("button", { type: "submit", class: "primary" }, t("login.connect")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = await proven("/api/console/login", field.value.trim());
    if (problem.textContent === "") done();
    else field.select();
  });
  host.replaceChildren(h("main", {}, form));
  field.focus();
}

/** Return whether the user wants to end this login, or after a question all logins of the account. @param {boolean} everywhere */
export async function signsOut(everywhere) {
  return !everywhere || confirmed(t("login.end_all"), t("login.end_all_text"), t("login.end_all"));
}

/** End this login, or all logins of the account. @param {boolean} [everywhere] @returns {Promise<boolean>} false if the gateway cannot be reached */
export async function endSession(everywhere = false) {
  try {
    await send("POST", everywhere ? "/api/console/logout-all" : "/api/console/logout");
    return true;
  } catch (error) {
    if (error.status === 0) return false;
    if (error.status === 401) return true;
    throw error;
  }
}

/** Ask for the token or a new code again. @returns {Promise<boolean>} whether the user proved who it is */
export function confirmIdentity() {
  return askProof({ label: t("login.proof"), hint: t("login.hint"), prove: (proof) => proven("/api/console/confirm", proof) });
}

async function proven(path, proof) {
  try {
    await send("POST", path, CODE.test(proof) ? { code: proof } : { token: proof });
    return "";
  } catch (error) {
    return error.status === 0 ? t("login.unreachable") : error.message;
  }
}
