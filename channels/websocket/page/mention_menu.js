/**
 * Menu of mention completions by plugins, such as for `@ad`: arrow keys select, Tab or Enter inserts. Without
 * completions it stays hidden.
 */
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

export class MentionMenu {
  element = h("ul", { id: "mentions", class: "commands", role: "listbox", "aria-label": t("composer.suggestions"), hidden: true });
  /** @type {readonly string[]} */
  triggers = [];
  #offers = [];
  #active = 0;
  #asked = null;
  #id = 0;

  /** @param {HTMLTextAreaElement} input @param {(question: {id: number, trigger: string, partial: string}) => void} ask */
  constructor(input, ask) {
    this.input = input;
    this.ask = ask;
    input.addEventListener("blur", () => this.close());
  }

  /** Update the menu after a change of the text or the caret. */
  update() {
    const found = this.#mention();
    if (found === null) return this.close();
    if (this.#asked?.trigger === found.trigger && this.#asked.partial === found.partial) return;
    this.#asked = { ...found, id: ++this.#id };
    this.ask({ id: this.#id, trigger: found.trigger, partial: found.partial });
  }

  close() {
    this.#asked = null;
    this.#show([]);
  }

  /** @param {{id: number, completions: {value: string, label: string, description: string}[]} | null} answer */
  offer(answer) {
    if (answer === null || answer.id !== this.#asked?.id) return;
    this.#active = 0;
    const typed = this.#asked.trigger + this.#asked.partial;
    const isComplete = answer.completions.length === 1 && answer.completions[0].value === typed;
    this.#show(isComplete ? [] : answer.completions);
  }

  /** Handle a key. @param {KeyboardEvent} event @returns {boolean} whether the menu used it */
  pressed(event) {
    const count = this.#offers.length;
    if (count === 0) return false;
    if (event.key === "ArrowDown") this.#walk((this.#active + 1) % count);
    else if (event.key === "ArrowUp") this.#walk((this.#active + count - 1) % count);
    else if (event.key === "Escape") this.close();
    else if (event.key === "Tab" || event.key === "Enter") this.#take(this.#offers[this.#active]);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  /** Return the word before the caret if it begins with a trigger. */
  #mention() {
    const before = this.input.value.slice(0, this.input.selectionStart);
    for (const trigger of this.triggers) {
      const at = before.lastIndexOf(trigger);
      const partial = before.slice(at + trigger.length);
      const begins = at === 0 || /\s/.test(before[at - 1] ?? "");
      if (at >= 0 && begins && !/\s/.test(partial) && partial.length <= 100) return { trigger, partial, at };
    }
    return null;
  }

  #walk(index) {
    this.#active = index;
    this.#show(this.#offers);
  }

  #take({ value }) {
    const { value: text, selectionStart: caret } = this.input;
    const at = this.#asked.at;
    this.input.value = `${text.slice(0, at)}${value} ${text.slice(caret)}`;
    this.input.selectionStart = this.input.selectionEnd = at + value.length + 1;
    this.close();
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #show(offers) {
    this.#offers = offers;
    this.element.hidden = offers.length === 0;
    this.element.replaceChildren(...offers.map((offer, index) => this.#option(offer, index)));
    if (offers.length > 0) {
      this.input.setAttribute("aria-controls", "mentions");
      this.input.setAttribute("aria-activedescendant", `mention-${this.#active}`);
    } else if (this.input.getAttribute("aria-controls") === "mentions") {
      this.input.setAttribute("aria-controls", "commands");
      this.input.removeAttribute("aria-activedescendant");
    }
    this.element.children[this.#active]?.scrollIntoView({ block: "nearest" });
  }

  #option(offer, index) {
    // A press must not move the focus from the input, because that would close the menu before the click.
    const take = (event) => (event.preventDefault(), this.#take(offer));
    return h(
      "li",
      { id: `mention-${index}`, role: "option", "aria-selected": String(index === this.#active), onmousedown: take },
      h("code", {}, offer.label),
      h("span", {}, offer.description),
    );
  }
}
