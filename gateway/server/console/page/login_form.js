/** The login: a form instead of the console, until the gateway knows who asks. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { proofFields } from "/shared/proof_dialog.js";
import { signIn } from "./session.js";

/** @param {HTMLElement} host @param {() => void} done called after a login */
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
    problem.textContent = await signIn(field.value.trim());
    if (problem.textContent === "") done();
    else field.select();
  });
  host.replaceChildren(h("main", {}, form));
  field.focus();
}
