/** Dialog with the plugins that have settings, and a form for those of one. */
import { changePluginConfig, listPlugins, readPluginConfig } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { difference, objectField, secretField } from "./plugin_form.js";

export async function openPlugins() {
  const list = h("ul", { class: "version-list" });
  const dialog = openDialog(t("plugins.title"), list);
  const plugins = await listPlugins();
  const open = ({ name }) => (dialog.close(), openPlugin(name));
  const rows = (plugins ?? []).filter((one) => one.configurable && one.enabled).map((one) => h("li", {}, h("button", { type: "button", onclick: () => open(one) }, h("strong", {}, one.name), h("small", { class: "muted" }, one.description))));
  list.append(...(rows.length ? rows : [h("li", {}, t(plugins ? "plugins.none" : "plugins.failed"))]));
}

async function openPlugin(name) {
  const form = h("form", { class: "plugin-form" });
  openDialog(name, form);
  const { config, error } = await readPluginConfig(name);
  if (error) form.append(h("p", { role: "alert" }, error));
  else showForm(form, config, config.problem);
}

function showForm(form, config, said, kind = "alert") {
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
    const { config: changed, error } = await changePluginConfig(config.name, { values: changes, secrets: given });
    save.disabled = false;
    if (error) form.append(h("p", { role: "alert" }, error));
    else if (changed.outcome === "failed") showForm(form, changed.config, t("plugins.kept_on", { problem: changed.problem }));
    else showForm(form, changed.config, t("plugins.saved"), "status");
  };
}
