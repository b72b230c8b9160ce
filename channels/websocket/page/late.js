/** Modules of dialogs and menus, which are loaded when a user opens them first. */
import { t } from "/shared/language.js";

/**
 * Return a function that loads a module with its first call, and calls one of its functions.
 * @param {() => Promise<Record<string, any>>} load @param {string} name of the function
 */
export function late(load, name) {
  return async (...given) => {
    let module;
    try {
      module = await load();
    } catch {
      document.dispatchEvent(new CustomEvent("notice", { detail: t("late.failed") }));
      return;
    }
    module[name](...given);
  };
}

export const openExport = late(() => import("./export_dialog.js"), "openExport");
export const openPicker = late(() => import("./model_picker.js"), "openPicker");
export const openPlugins = late(() => import("./plugins_dialog.js"), "openPlugins");
export const openSettings = late(() => import("./settings_dialog.js"), "openSettings");
export const openShareDialog = late(() => import("./share_dialog.js"), "openShareDialog");
export const openShortcuts = late(() => import("./shortcuts_dialog.js"), "openShortcuts");
export const openVersions = late(() => import("./version_menu.js"), "openVersions");
