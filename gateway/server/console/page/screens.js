/**
 * The screens, in the order of the sidebar. The module of a late screen is loaded when it is opened first; it exports
 * `render`.
 *
 * @typedef {object} Screen
 * @property {string} name first part of its address: /console/NAME
 * @property {() => string} title
 * @property {string} icon a name of /shared/icons.js
 * @property {"watch" | "act" | "set_up"} group
 * @property {readonly ("admin" | "viewer")[]} roles that can open it
 * @property {() => Promise<object>} load its module
 * @property {(host: HTMLElement, params: import("./router.js").Params, context: import("./app.js").Context) => Shown} render
 *
 * @typedef {object} Shown
 * @property {() => void} dispose stop what the screen started; its elements are removed by the frame
 * @property {(params: import("./router.js").Params) => void} [update] another address of the same screen
 */
import { t } from "/shared/language.js";
import { lateScreen } from "./late_screen.js";

const BOTH = /** @type {const} */ (["admin", "viewer"]);

/** @type {readonly Screen[]} */
export const SCREENS = [
  lateScreen({ name: "now", title: () => t("now.title"), icon: "pulse", group: "watch", roles: BOTH }, () => import("./now_screen.js")),
  lateScreen({ name: "conversations", title: () => t("talks.title"), icon: "talks", group: "watch", roles: ["admin"] }, () => import("./conversations_screen.js")),
  lateScreen({ name: "why", title: () => t("why.title"), icon: "path", group: "watch", roles: BOTH }, () => import("./why_screen.js")),
  lateScreen({ name: "money", title: () => t("money.title"), icon: "money", group: "watch", roles: BOTH }, () => import("./money_screen.js")),
  lateScreen({ name: "waiting", title: () => t("waiting.title"), icon: "hand", group: "act", roles: BOTH }, () => import("./waiting_screen.js")),
  lateScreen({ name: "dead", title: () => t("dead.title"), icon: "inbox", group: "act", roles: BOTH }, () => import("./dead_screen.js")),
  lateScreen({ name: "agents", title: () => t("agents.title"), icon: "robot", group: "set_up", roles: BOTH }, () => import("./agents_screen.js")),
  lateScreen({ name: "models", title: () => t("models.title"), icon: "chip", group: "set_up", roles: BOTH }, () => import("./models_screen.js")),
  lateScreen({ name: "rooms", title: () => t("rooms.title"), icon: "hash", group: "set_up", roles: BOTH }, () => import("./rooms_screen.js")),
  lateScreen({ name: "plugins", title: () => t("extensions.title"), icon: "plug", group: "set_up", roles: BOTH }, () => import("./plugins_screen.js")),
  lateScreen({ name: "settings", title: () => t("settings.title"), icon: "gear", group: "set_up", roles: ["admin"] }, () => import("./settings_screen.js")),
];
