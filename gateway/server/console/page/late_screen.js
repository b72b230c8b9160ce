/** Screens whose module is loaded when they are opened first, so that the page starts with little script. */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { failedState } from "/shared/states.js";

/**
 * @param {Omit<import("./screens.js").Screen, "load" | "render">} facts
 * @param {() => Promise<{render: import("./screens.js").Screen["render"]}>} load
 * @returns {import("./screens.js").Screen}
 */
export function lateScreen(facts, load) {
  return { ...facts, load, render: (host, params, context) => new Late(host, params, context, load) };
}

class Late {
  /** @type {import("./screens.js").Shown | null} */
  #shown = null;
  #params;
  #closed = false;

  constructor(host, params, context, load) {
    this.#params = params;
    this.#open(host, context, load);
  }

  dispose() {
    this.#closed = true;
    this.#shown?.dispose();
  }

  /** Show another address of the screen. @param {import("./router.js").Params} params */
  update(params) {
    this.#params = params;
    this.#shown?.update?.(params);
  }

  async #open(host, context, load) {
    let module;
    try {
      module = await load();
    } catch {
      if (!this.#closed) host.replaceChildren(h("section", { class: "card" }, failedState({ text: t("api.unreachable"), again: () => location.reload() })));
      return;
    }
    if (this.#closed) return;
    this.#shown = module.render(host, this.#params, context);
    // The frame did so before there was a heading.
    if (document.activeElement?.matches("body, a, button")) host.querySelector("h1")?.focus({ preventScroll: true });
  }
}
