/** The handle at the edge of the list of conversations: dragging and the arrow keys change its width, which is kept. */
import { choice, choose } from "/shared/choices.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";

const KEY = "trunkline.list_width";
const [LEAST, MOST, USUAL, STEP] = [220, 520, 272, 16];

export function widthHandle() {
  const handle = h("div", { class: "width-handle", role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": t("list.width"), "aria-valuemin": LEAST, "aria-valuemax": MOST });
  let width = Number(choice(KEY)) || USUAL;
  const use = (wanted) => {
    width = Math.round(Math.max(LEAST, Math.min(wanted, MOST)));
    document.documentElement.style.setProperty("--list", `${width}px`);
    handle.setAttribute("aria-valuenow", width);
  };
  const keep = () => choose(KEY, String(width));
  handle.addEventListener("pointerdown", (event) => (event.preventDefault(), handle.setPointerCapture(event.pointerId)));
  handle.addEventListener("pointermove", (event) => handle.hasPointerCapture(event.pointerId) && use(event.clientX));
  handle.addEventListener("pointerup", keep);
  handle.addEventListener("dblclick", () => (use(USUAL), keep()));
  handle.addEventListener("keydown", (event) => {
    const to = { ArrowRight: width + STEP, ArrowLeft: width - STEP, Home: LEAST, End: MOST }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    use(to);
    keep();
  });
  use(width);
  return handle;
}
