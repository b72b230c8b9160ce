/**
 * `<tl-tool>`: a tool call and its result in one panel that folds: name, status and duration on the line,
 * arguments and output inside. What the tool made stands below it.
 */
import { attachmentView } from "./attachment_view.js";
import { copyButton } from "./copy_button.js";
import { growText, h } from "./dom.js";
import { duration } from "./figures.js";
import { icon } from "./icons.js";

const STATUS = { waiting: "waiting", running: "running", ok: "done", failed: "failed", stopped: "stopped" };

export class ToolPanel extends HTMLElement {
  #name = h("span", { class: "tool-name" });
  #hint = h("span", { class: "tool-hint" });
  #mark = h("span", { class: "tool-mark", "aria-hidden": "true" });
  #status = h("span", { class: "tool-status" });
  #arguments = document.createTextNode("");
  #output = document.createTextNode("");
  #outputBox = h("div", { class: "tool-output" });
  #attachments = h("div", { class: "attachments" });
  #shown = {};

  connectedCallback() {
    if (this.firstChild) return;
    const summary = h("summary", {}, this.#mark, this.#name, this.#hint, this.#status, icon("chevron"));
    this.#outputBox.append(heading("Output", () => this.#output.data), pre("Output", this.#output));
    const given = h("div", {}, heading("Arguments", () => this.#arguments.data), pre("Arguments", this.#arguments));
    this.append(h("details", { class: "tool" }, summary, h("div", { class: "tool-body" }, given, this.#outputBox)), this.#attachments);
  }

  /** @param {{call?: object, result?: object, live: boolean}} run */
  render(run) {
    if (this.#shown.call === run.call && this.#shown.result === run.result && this.#shown.live === run.live) return;
    this.#shown = run;
    const { call, result } = run;
    const status = statusOf(run);
    this.dataset.status = status;
    this.#name.textContent = call?.tool_name ?? result?.title ?? "tool";
    this.#hint.textContent = hint(run);
    this.#status.textContent = STATUS[status] + (result?.durationMs === undefined ? "" : ` · ${duration(result.durationMs)}`);
    growText(this.#arguments, pretty(call?.argumentsText ?? ""));
    growText(this.#output, result?.output ?? "");
    this.#outputBox.hidden = !result?.output;
    this.#showAttachments(result?.attachments ?? []);
  }

  #showAttachments(attachments) {
    if (this.#attachments.childElementCount === attachments.length) return;
    this.#attachments.replaceChildren(...attachments.map(attachmentView));
  }
}

function heading(text, copied) {
  return h("div", { class: "tool-heading" }, h("span", {}, text), copyButton(`Copy ${text.toLowerCase()}`, copied));
}

function pre(label, text) {
  return h("pre", { tabindex: "0", role: "region", "aria-label": label }, text);
}

function statusOf({ call, result, live }) {
  if (result && result.status !== "running") return result.status;
  if (!live) return "stopped";
  return result || !call ? "running" : "waiting";
}

/** The last line of output while it runs, else what it was asked: enough to know without opening it. */
function hint({ call, result }) {
  if (result?.status === "running" && result.output) return result.output.trimEnd().split("\n").at(-1);
  const values = Object.values(parsed(call?.argumentsText ?? "") ?? {});
  return result?.title ?? values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ");
}

function pretty(text) {
  const value = parsed(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

/** The arguments as an object; undefined while they are still arriving, or if they are no JSON. */
function parsed(text) {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return undefined;
  }
}

customElements.define("tl-tool", ToolPanel);
