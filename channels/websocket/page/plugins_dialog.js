/** Dialog with the plugins that have settings, and a form for those of one. */
import { changePluginConfig, listPlugins, readPluginConfig } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { showPluginForm } from "/shared/plugin_settings.js";

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
  else showPluginForm(form, config, changePluginConfig, config.problem);
}
