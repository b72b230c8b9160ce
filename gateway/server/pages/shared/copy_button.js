/** Copy buttons: one for each block of code, one for the whole answer. */
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

const SHOWN_MS = 1_600;

/** @param {string} label @param {() => string} text the text to copy, called when the button is pressed */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "copy quiet", "aria-label": label, title: label }, icon("copy"));
  button.addEventListener("click", async () => {
    const done = await copied(text());
    show(button, done ? "check" : "warning", done ? t("copy.done") : t("copy.refused"));
    setTimeout(() => show(button, "copy", label), SHOWN_MS);
  });
  return button;
}

/** Add a copy button to each block of code in `element`. */
export function addCopyButtons(element) {
  const figures = element.matches("figure.code") ? [element] : element.querySelectorAll("figure.code");
  for (const figure of figures) {
    const code = figure.querySelector("code");
    figure.querySelector("figcaption").append(copyButton(t("copy.code"), () => code.textContent));
  }
}

function show(button, name, label) {
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", label);
  button.title = label;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

/** Copy with the old command where there is no clipboard object, as on plain http. */
function copiedBySelection(text) {
  const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
