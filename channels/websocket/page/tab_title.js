/** The title of the tab: what is open, whether an answer is being made, and how many came while one looked away. */
import { isRunning, titleOf } from "./state.js";

export class TabTitle {
  #unread = 0;

  constructor() {
    document.addEventListener("visibilitychange", () => document.hidden || this.#read());
  }

  /** @param {import("./state.js").State} state @param {object} action what led to it */
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
