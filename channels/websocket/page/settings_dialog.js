/**
 * Dialog with the settings of this browser: theme, language, times and send key. It leads to those of plugins, and
 * sends `sign-out`.
 */
import { chooseClock, chosenClock } from "/shared/dates.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { chooseLanguage, language, LANGUAGES, t } from "/shared/language.js";
import { openPlugins, openShortcuts } from "./late.js";
import { chooseSendKey, sendKey } from "./send_key.js";
import { chooseTheme, chosenTheme } from "/shared/theme.js";

const THEMES = ["", "light", "dark"];

/** @param {boolean} signedIn whether there is a login to end */
export function openSettings(signedIn) {
  const theme = choice("set-theme", THEMES.map((value) => [value, t(`settings.theme_${value || "system"}`)]), chosenTheme());
  const tongue = choice("set-language", Object.entries(LANGUAGES), language);
  const send = choice("set-send-key", ["enter", "ctrl"].map((value) => [value, t(`settings.send_${value}`)]), sendKey());
  const hours = choice("set-clock", ["", "24", "12"].map((value) => [value, t(`settings.clock_${value || "language"}`)]), chosenClock());
  const keys = h("button", { type: "button" }, t("keys.title"));
  const plugins = h("button", { type: "button" }, t("plugins.title"));
  const out = h("button", { type: "button", hidden: !signedIn }, t("signout.title"));
  theme.addEventListener("change", () => chooseTheme(theme.value));
  tongue.addEventListener("change", () => chooseLanguage(tongue.value));
  hours.addEventListener("change", () => chooseClock(hours.value));
  send.addEventListener("change", () => chooseSendKey(send.value));
  const dialog = openDialog(
    t("settings.title"),
    h("p", { class: "setting" }, h("label", { for: theme.id }, t("settings.theme")), theme),
    h("p", { class: "setting" }, h("label", { for: tongue.id }, t("settings.language")), tongue),
    h("p", { class: "setting" }, h("label", { for: hours.id }, t("settings.clock")), hours),
    h("p", { class: "setting" }, h("label", { for: send.id }, t("settings.send")), send),
    h("p", { class: "line" }, keys, plugins, out),
  );
  plugins.addEventListener("click", () => (dialog.close(), openPlugins()));
  keys.addEventListener("click", () => (dialog.close(), openShortcuts()));
  out.addEventListener("click", () => (dialog.close(), document.dispatchEvent(new CustomEvent("sign-out"))));
}

function choice(id, values, chosen) {
  return h("select", { id }, ...values.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
}
