/** Menu of slash commands above the input: `/` opens it, arrow keys select, Tab or Enter inserts. */
import { h } from "/shared/dom.js";
import { has, t } from "/shared/language.js";

const COMMAND = /^\/([\w-]*)$/;

export class CommandMenu {
  element = h("ul", { id: "commands", class: "commands", role: "listbox", "aria-label": t("composer.commands"), hidden: true });
  /** @type {{name: string, description: string}[]} */
  commands = [];
  #matches = [];
  #active = 0;

  /** @param {HTMLTextAreaElement} input */
  constructor(input) {
    this.input = input;
    input.setAttribute("aria-controls", "commands");
    input.setAttribute("aria-autocomplete", "list");
    input.addEventListener("blur", () => this.#show([]));
  }

  /** Update the menu after a change of the input. */
  update() {
    const typed = COMMAND.exec(this.input.value)?.[1];
    const fits = ({ name }) => bare(name).startsWith(typed);
    this.#active = 0;
    this.#show(typed === undefined ? [] : this.commands.filter(fits));
  }

  /** Handle a key. @param {KeyboardEvent} event @returns {boolean} whether the menu used it */
  pressed(event) {
    const count = this.#matches.length;
    if (count === 0) return false;
    if (event.key === "ArrowDown") this.#walk((this.#active + 1) % count);
    else if (event.key === "ArrowUp") this.#walk((this.#active + count - 1) % count);
    else if (event.key === "Escape") this.#show([]);
    else if (event.key === "Tab" || (event.key === "Enter" && !this.#isComplete())) this.#take(this.#matches[this.#active]);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  #isComplete() {
    return this.input.value === `/${bare(this.#matches[this.#active].name)}`;
  }

  #walk(index) {
    this.#active = index;
    this.#show(this.#matches);
  }

  #take({ name }) {
    this.input.value = `/${bare(name)} `;
    this.#show([]);
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #show(matches) {
    this.#matches = matches;
    this.element.hidden = matches.length === 0;
    this.element.replaceChildren(...matches.map((command, index) => this.#option(command, index)));
    if (matches.length > 0) this.input.setAttribute("aria-activedescendant", `command-${this.#active}`);
    else this.input.removeAttribute("aria-activedescendant");
    this.element.children[this.#active]?.scrollIntoView({ block: "nearest" });
  }

  #option(command, index) {
    // A press must not move the focus from the input, because that would close the menu before the click.
    const take = (event) => (event.preventDefault(), this.#take(command));
    return h(
      "li",
      { id: `command-${index}`, role: "option", "aria-selected": String(index === this.#active), onmousedown: take },
      h("code", {}, `/${bare(command.name)}`),
      description(command),
    );
  }
}

/** Return what a command does. Those of plugins have one language. */
function description({ name, description: own }) {
  const key = `command.${bare(name)}`;
  return has(key) ? h("span", {}, t(key)) : h("span", { lang: "en" }, own);
}

function bare(name) {
  return name.replace(/^\//, "");
}
