/** The login: a form instead of the console, until the gateway knows who asks. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

/** @param {HTMLElement} host @param {() => void} done called after a login */
export function showLogin(host, done) {
  const token = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const problem = h("p", { class: "problem", role: "alert" });
  const form = h(
    "form",
    { "aria-labelledby": "login-title" },
    h("img", { src: "/shared/icon.svg", alt: "", width: 40, height: 40 }),
    h("h1", { id: "login-title" }, t("login.title")),
    h("p", { class: "muted" }, t("login.text")),
    h("label", { for: "token" }, t("login.token")),
    token,
    problem,
    h("button", { type: "submit", class: "primary" }, t("login.connect")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    const refusal = await signIn(token.value.trim());
    if (refusal === "") done();
    else {
      problem.textContent = refusal;
      token.select();
    }
  });
  host.replaceChildren(h("main", {}, form));
  token.focus();
}

/** @returns {Promise<string>} why the login was refused, empty after a login */
async function signIn(token) {
  try {
    const response = await fetch("/api/browser", { method: "POST", headers: { Authorization: `Bearer ${token}` }, credentials: "same-origin" });
    return response.ok ? "" : ((await response.json()).message ?? response.statusText);
  } catch {
    return t("login.unreachable");
  }
}
