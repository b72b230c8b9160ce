/** `<tl-token>`: form for the access token, if the server requires one. Sends `token` with it. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

export class TokenForm extends HTMLElement {
  #input = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  #problem = h("p", { class: "problem", role: "alert" });

  connectedCallback() {
    if (this.firstChild) return;
    const form = h(
      "form",
      { class: "card" },
      h("img", { src: "/shared/icon.svg", alt: "", width: 40, height: 40 }),
      h("h2", { id: "token-title" }, t("token.title")),
      h("p", { class: "muted" }, t("token.text")),
      h("label", { for: "token" }, t("token.label")),
      this.#input,
      this.#problem,
      h("button", { type: "submit", class: "primary" }, t("token.connect")),
    );
    form.addEventListener("submit", (event) => this.#submit(event));
    this.setAttribute("role", "dialog");
    this.setAttribute("aria-modal", "true");
    this.setAttribute("aria-labelledby", "token-title");
    this.append(form);
  }

  /** @param {string} connection status of the connection */
  render(connection) {
    const needed = connection === "denied";
    if (needed === !this.hidden) return;
    if (!needed && connection !== "online") return;
    this.hidden = !needed;
    for (const behind of document.querySelectorAll("tl-sidebar, .room")) behind.inert = needed;
    if (needed) this.#input.focus();
    else this.#input.value = "";
  }

  #submit(event) {
    event.preventDefault();
    this.#problem.textContent = "";
    this.dispatchEvent(new CustomEvent("token", { bubbles: true, detail: this.#input.value.trim() }));
  }

  /** Show why the token was refused. @param {string} reason */
  refused(reason) {
    this.#problem.textContent = reason;
    this.#input.select();
  }
}

customElements.define("tl-token", TokenForm);
