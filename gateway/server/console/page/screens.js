/**
 * The screens, in the order of the sidebar. A screen is a module with one export:
 *
 * @typedef {object} Screen
 * @property {string} name first part of its address: /console/NAME
 * @property {() => string} title
 * @property {string} icon a name of /shared/icons.js
 * @property {"watch" | "act" | "set_up"} group
 * @property {readonly ("admin" | "viewer")[]} roles that can open it
 * @property {(host: HTMLElement, params: import("./router.js").Params, context: import("./app.js").Context) => Shown} render
 *
 * @typedef {object} Shown
 * @property {() => void} dispose stop what the screen started; its elements are removed by the frame
 * @property {(params: import("./router.js").Params) => void} [update] another address of the same screen
 */
import { screen as conversations } from "./conversations_screen.js";
import { screen as why } from "./why_screen.js";
import { screen as money } from "./money_screen.js";
import { screen as dead } from "./dead_screen.js";

/** @type {readonly Screen[]} */
export const SCREENS = [
  // watch: now
  conversations,
  why,
  money,
  // act: waiting, dead
  dead,
  // set_up: agents, models, rooms, plugins, settings
];
