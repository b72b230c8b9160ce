/** Dialog that selects the agent and the model of a conversation: a search field and a list of both. */
import { listChoices } from "./api.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

/** Most models in the list; the search finds the others. */
const MOST = 100;

/**
 * @param {{model: string, agent: string}} now
 * @param {(change: {model?: string | null, agent?: string | null}) => void} onChange
 */
export async function openPicker(now, onChange) {
  const input = h("input", { type: "search", role: "combobox", "aria-label": t("picker.search"), placeholder: t("picker.search"), "aria-controls": "choices", "aria-expanded": "true", autocomplete: "off" });
  const list = h("div", { id: "choices", class: "choices-list", role: "listbox", "aria-label": t("picker.title") });
  const note = h("p", { class: "muted", role: "status" }, t("picker.loading"));
  const dialog = openDialog(t("picker.title"), input, note, list);
  input.focus();
  const { models, agents } = await listChoices();
  if (!models && !agents) return (note.textContent = t("share.failed"));
  const choose = (change) => (dialog.close(), onChange(change));
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    const fits = (choice) => words.every((word) => `${choice.name} ${choice.model ?? ""} ${choice.description ?? ""}`.toLowerCase().includes(word));
    const foundModels = (models ?? []).filter(fits);
    list.replaceChildren(
      ...group(t("picker.agents"), (agents ?? []).filter(fits), (one) => option(one.name, one.description, one.name === now.agent, () => choose({ agent: one.name }))),
      ...group(t("picker.models"), foundModels.slice(0, MOST), (one) => option(one.name, facts(one), one.name === now.model, () => choose({ model: one.name }))),
      ...(input.value ? [] : [option(t("picker.default"), t("picker.default_why"), false, () => choose({ model: null, agent: null }))]),
    );
    const left = foundModels.length - MOST;
    note.textContent = list.childElementCount === 0 ? t("picker.none") : left > 0 ? t("picker.more", { count: left }) : "";
    mark(0);
  };
  let active = 0;
  const options = () => [...list.querySelectorAll("[role=option]")];
  const mark = (index) => {
    const all = options();
    active = all.length && (index + all.length) % all.length;
    all.forEach((one, at) => (one.id = `choice-${at}`));
    all.forEach((one, at) => one.toggleAttribute("data-active", at === active));
    if (all.length) input.setAttribute("aria-activedescendant", `choice-${active}`);
    else input.removeAttribute("aria-activedescendant");
    all[active]?.scrollIntoView({ block: "nearest" });
  };
  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) mark(active + step);
    else if (event.key === "Enter") options()[active]?.click();
    else return;
    event.preventDefault();
  });
  show();
}

function group(label, choices, create) {
  return choices.length === 0 ? [] : [h("div", { role: "group", "aria-label": label }, h("h3", { "aria-hidden": "true" }, label), ...choices.map(create))];
}

function option(name, about, selected, onclick) {
  return h("div", { role: "option", "aria-selected": String(selected), onclick }, h("strong", {}, name), about && h("span", { class: "muted" }, about));
}

/** Return what is known of a model in one line. */
function facts({ name, model, context_window, images, tools, input_price, output_price }) {
  const price = input_price === null || output_price === null ? "" : t("picker.price", { input: input_price, output: output_price });
  const window = context_window ? t("picker.window", { count: `${Math.round(context_window / 1000)}k` }) : "";
  return [name === model ? "" : model, price, window, images ? t("picker.images") : "", tools ? t("picker.tools") : ""].filter(Boolean).join(" · ");
}
