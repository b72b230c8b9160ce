/** Title of the tab: the open session, a mark for a running answer, and the answers completed while the tab was hidden. */
import { isRunning, titleOf } from "./state.js";

export class TabTitle {
  #unread = 0;

  constructor() {
    document.addEventListener("visibilitychange", () => document.hidden || this.#read());
  }

  /** @param {import("./state.js").State} state @param {object} action the action that led to it */
  render(state, action) {
    if (document.hidden && action.frame?.type === "complete") this.#unread++;
    const base = state.current === null ? "Trunkline" : `${titleOf(state, state.current)} · Trunkline`;
    const marks = [this.#unread > 0 && `(${this.#unread})`, isRunning(state, state.current) && "●"].filter(Boolean);
    const title = [...marks, base].join(" ");
    if (document.title !== title) document.title = title;
  }

  #read() {
    this.#unread = 0;
    document.title = document.title.replace(/^\(\d+\) /, "");
  }
}
