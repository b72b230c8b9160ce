/**
 * `<tl-tool>`: foldable panel of a tool call and its result: name, status and duration in the summary, arguments
 * and output inside. The nested runs and the attachments of the result are below it.
 */
import { attachmentView } from "./attachment_view.js";
import { copyButton } from "/shared/copy_button.js";
import { growText, h, reconcile } from "/shared/dom.js";
import { duration } from "/shared/figures.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import "./task_log.js";

const STATUS = { asks: t("tool.asks"), waiting: t("tool.waiting"), running: t("tool.running"), ok: t("tool.ok"), failed: t("tool.failed"), stopped: t("tool.stopped") };

/** The tool whose nested run is shown before it ends. */
const TASK = "task";
const DIFF = { "+": "gi", "-": "gd", "@": "gu" };
/** Fields of display hints that may name the main argument of a tool, in order of preference. */
const CONCEPTS = ["command", "path", "file", "url", "query"];

export class ToolPanel extends HTMLElement {
  #name = h("span", { class: "tool-name" });
  #hint = h("span", { class: "tool-hint" });
  #mark = h("span", { class: "tool-mark", "aria-hidden": "true" });
  #status = h("span", { class: "tool-status" });
  #arguments = document.createTextNode("");
  #output = document.createTextNode("");
  #outputBox = h("div", { class: "tool-output" });
  #attachments = h("div", { class: "attachments" });
  #tasks = h("div", { class: "tasks" });
  #shown = {};

  connectedCallback() {
    if (this.firstChild) return;
    const summary = h("summary", {}, this.#mark, this.#name, this.#hint, this.#status, icon("chevron"));
    this.#outputBox.append(heading(t("tool.output"), () => this.#output.data), pre(t("tool.output"), this.#output));
    const given = h("div", {}, heading(t("tool.arguments"), () => this.#arguments.data), pre(t("tool.arguments"), this.#arguments));
    this.append(h("details", { class: "tool" }, summary, h("div", { class: "tool-body" }, given, this.#outputBox)), this.#tasks, this.#attachments);
  }

  /** @param {{call?: object, result?: object, live: boolean}} run */
  render(run) {
    if (this.#shown.call === run.call && this.#shown.result === run.result && this.#shown.live === run.live && this.#shown.asks === run.asks) return;
    this.#shown = run;
    const { call, result } = run;
    const status = statusOf(run);
    this.dataset.status = status;
    this.dataset.kind = result?.display?.kind ?? "";
    this.#name.textContent = result?.display?.verb ?? call?.tool_name ?? result?.title ?? "tool";
    this.#name.title = call?.tool_name ?? "";
    this.#hint.textContent = hint(run);
    this.#status.textContent = STATUS[status] + (result?.durationMs === undefined ? "" : ` · ${duration(result.durationMs)}`);
    growText(this.#arguments, pretty(call?.argumentsText ?? ""));
    this.#showOutput(result?.output ?? "", result?.display?.kind);
    this.#outputBox.hidden = !result?.output;
    this.#showAttachments(result?.attachments ?? []);
    this.#showTasks(run, status);
  }

  /** Show the logs of nested runs. Until the call of one has ended, its session is found when the log is opened. */
  #showTasks({ call, result }, status) {
    const open = status === "running" && call?.tool_name === TASK ? [""] : [];
    const sessions = result?.sessions ?? open;
    reconcile(this.#tasks, sessions.map((session, index) => ({ session, index })), ({ index }) => `${index}`, () => h("tl-task"), (log, { session }) => {
      log.call = call?.tool_call_id ?? "";
      if (session) log.dataset.session = session;
    });
  }

  /** Show the output: a diff has coloured lines; other output is appended, so that a selection in it stays. */
  #showOutput(output, kind) {
    if (kind !== "diff") return growText(this.#output, output);
    if (this.#output.data === output) return;
    const box = this.#outputBox.querySelector("pre");
    this.#output.data = output;
    box.replaceChildren(...diffLines(output));
  }

  #showAttachments(attachments) {
    if (this.#attachments.childElementCount === attachments.length) return;
    this.#attachments.replaceChildren(...attachments.map(attachmentView));
  }
}

/** Return the coloured lines of a diff. @param {string} diff */
export function diffLines(diff) {
  return diff.split("\n").map((line) => h("span", { class: DIFF[line[0]] ?? "" }, `${line}\n`));
}

function heading(text, copied) {
  return h("div", { class: "tool-heading" }, h("span", {}, text), copyButton(t("tool.copy", { what: text.toLowerCase() }), copied));
}

function pre(label, text) {
  return h("pre", { tabindex: "0", role: "group", "aria-label": label }, text);
}

function statusOf({ call, result, live, asks }) {
  if (result && result.status !== "running") return result.status;
  if (!live) return "stopped";
  if (asks) return "asks";
  return result || !call ? "running" : "waiting";
}

/** Return the hint of the summary: the last line of output while the tool runs, else its main argument or title. */
function hint({ call, result }) {
  if (result?.status === "running" && result.output) return result.output.trimEnd().split("\n").at(-1);
  const given = parsed(call?.argumentsText ?? "") ?? {};
  const { kind, fields = {} } = result?.display ?? {};
  const concept = [...CONCEPTS, ...Object.keys(fields)].find((name) => given[fields[name]] !== undefined);
  if (concept) return `${kind === "shell" ? "$ " : ""}${given[fields[concept]]}`;
  // The verb of the hints is already the title of the panel.
  const title = result?.title === result?.display?.verb ? undefined : result?.title;
  return title ?? Object.values(given).map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ");
}

function pretty(text) {
  const value = parsed(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

/** Return the arguments as an object; undefined while they are incomplete, or if they are not JSON. */
function parsed(text) {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return undefined;
  }
}

customElements.define("tl-tool", ToolPanel);
