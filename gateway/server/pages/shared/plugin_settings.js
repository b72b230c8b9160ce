/** The form of a plugin's settings, which saves what was changed. */
import { h } from "./dom.js";
import { t } from "./language.js";
import { difference, objectField, secretField } from "./plugin_form.js";

/**
 * @param {HTMLFormElement} form
 * @param {object} config as `/api/plugins/{name}/config` has it
 * @param {(name: string, change: object) => Promise<{config?: object, error?: string}>} change
 * @param {string} [said] shown below the fields @param {"alert" | "status"} [kind]
 */
export function showPluginForm(form, config, change, said = "", kind = "alert") {
  const values = objectField(config.schema, config.values, config.hidden);
  const secrets = Object.entries(config.secrets).map(([name, isSet]) => [name, secretField(name, isSet)]);
  const before = values.read();
  const save = h("button", { type: "submit", class: "primary" }, t("plugins.save"));
  form.replaceChildren(h("p", { class: "muted" }, config.description), values.element, ...secrets.map(([, one]) => one.element), save, said && h("p", { role: kind }, said));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(secrets.map(([name, one]) => [name, one.read()]).filter(([, value]) => value));
    form.querySelector("[role]")?.remove();
    let changes;
    try {
      changes = difference(before, values.read()) ?? {};
    } catch {
      form.append(h("p", { role: "alert" }, t("plugins.json")));
      return;
    }
    save.disabled = true;
    const { config: changed, error } = await change(config.name, { values: changes, secrets: given });
    save.disabled = false;
    if (error) form.append(h("p", { role: "alert" }, error));
    else if (changed.outcome === "failed") showPluginForm(form, changed.config, change, t("plugins.kept_on", { problem: changed.problem }));
    else showPluginForm(form, changed.config, change, t("plugins.saved"), "status");
  };
}
