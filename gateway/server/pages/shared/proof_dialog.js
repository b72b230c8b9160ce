/** Dialog that asks again who the user is, before something that says who or what may act through the gateway. */
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { t } from "./language.js";

/**
 * @param {{label: string, hint?: string, prove: (proof: string) => Promise<string>}} how `prove` returns why it was refused, else ""
 * @returns {Promise<boolean>} whether the user proved who it is
 */
export function askProof({ label, hint = "", prove }) {
  return new Promise((resolve) => {
    const { field, problem, parts } = proofFields(label, hint);
    const form = h("form", { class: "proof" }, h("p", {}, t("proof.text")), ...parts, h("button", { type: "submit", class: "primary" }, t("proof.confirm")));
    const dialog = openDialog(t("proof.title"), form);
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      problem.textContent = await prove(field.value.trim());
      done = problem.textContent === "";
      if (done) dialog.close();
      else field.select();
    });
    dialog.addEventListener("close", () => resolve(done));
    field.focus();
  });
}

/** Return the field for a proof, with its label and the place of a refusal. */
export function proofFields(label, hint) {
  const field = h("input", { id: "proof", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": hint ? "proof-hint" : undefined });
  const problem = h("p", { class: "problem", role: "alert" });
  return { field, problem, parts: [h("label", { for: "proof" }, label), field, hint && h("p", { id: "proof-hint", class: "muted" }, hint), problem].filter(Boolean) };
}
