/**
 * Dialog with the terminal of a coding agent. It shows what the gateway rendered; to type, the user takes the
 * keyboard, which one client at a time can have: a second press takes it from another one. Ctrl+. gives it back.
 */
import { openChanges } from "./agent_changes.js";
import { stateMark } from "./agent_state.js";
import { openDialog } from "/shared/dialog.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { terminalKey } from "./terminal_keys.js";
import { TerminalScreen } from "./terminal_screen.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const GONE = 4404;
const BUTTONS = { escape: "Esc", tab: "Tab", up: "↑", down: "↓", left: "←", right: "→", "ctrl+c": "Ctrl+C", enter: "Enter" };

/** @param {{id: string, workspace: string}} agent */
export function openTerminal(agent) {
  new Terminal(agent);
}

class Terminal {
  #screen = new TerminalScreen(t("terminal.screen"));
  #state = h("span", { class: "terminal-state", role: "status" });
  #said = h("p", { class: "terminal-said", role: "alert", hidden: true });
  #drive = h("button", { type: "button", "aria-pressed": "false", disabled: true }, t("terminal.drive"));
  #fit = h("button", { type: "button", hidden: true, onclick: () => this.#send({ type: "resize", ...this.#screen.fitting() }) }, t("terminal.fit"));
  #input = h("textarea", { rows: "1", "aria-label": t("terminal.input"), placeholder: t("terminal.input_hint"), autocapitalize: "off", autocomplete: "off", autocorrect: "off", spellcheck: "false" });
  #keys = h("div", { class: "terminal-keys", role: "group", "aria-label": t("terminal.keys"), hidden: true }, this.#input);
  #socket = null;
  #failures = 0;
  #retry = 0;
  #open = true;
  #driving = false;
  #busy = false;
  #released = false;

  constructor({ id, workspace }) {
    this.#keys.append(...Object.entries(BUTTONS).map(([name, label]) => h("button", { type: "button", onclick: () => this.#press(name) }, label)));
    const head = h("div", { class: "terminal-head" }, this.#state, this.#drive, this.#fit);
    if (workspace) head.append(h("button", { type: "button", onclick: () => openChanges(workspace) }, t("agents.changes")));
    const dialog = openDialog(t("terminal.title", { id: id.slice(id.lastIndexOf("-") + 1) }), head, this.#said, this.#screen.element, this.#keys);
    dialog.classList.add("terminal");
    dialog.addEventListener("close", () => this.#close());
    this.#drive.addEventListener("click", () => (this.#driving ? this.#release() : this.#send({ type: "drive", take: this.#busy })));
    this.#screen.element.addEventListener("click", () => this.#driving && getSelection().isCollapsed && this.#input.focus());
    this.#input.addEventListener("keydown", (event) => this.#pressed(event));
    this.#input.addEventListener("input", (event) => event.isComposing || this.#type());
    this.#input.addEventListener("compositionend", () => this.#type());
    this.#input.addEventListener("paste", (event) => this.#paste(event));
    this.#connect(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/coding-agents/${encodeURIComponent(id)}/terminal?view=rows`);
  }

  #connect(url) {
    const socket = new WebSocket(url);
    this.#socket = socket;
    socket.onmessage = (event) => this.#receive(JSON.parse(event.data));
    socket.onclose = (event) => this.#lost(event.code, url);
  }

  #lost(code, url) {
    if (!this.#open) return;
    this.#drive.disabled = true;
    this.#showDriving(false);
    if (code === GONE) {
      this.#say(t("terminal.gone"));
      return;
    }
    this.#say(t("terminal.waiting"));
    const most = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    this.#retry = setTimeout(() => this.#connect(url), most * (0.5 + Math.random() / 2));
  }

  #close() {
    this.#open = false;
    clearTimeout(this.#retry);
    this.#socket.close();
  }

  #send(frame) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #receive(frame) {
    if (this.#failures > 0) this.#say("");
    this.#failures = 0;
    if (frame.type === "screen") this.#draw(frame);
    else if (frame.type === "state") this.#showState(frame);
    else if (frame.type === "refused") this.#refuse(frame);
  }

  #refuse({ error_name: name, message }) {
    this.#busy = name === "TERMINAL_BUSY" && !this.#driving;
    this.#say(this.#busy ? t("terminal.busy") : message);
    if (this.#busy) this.#drive.textContent = t("terminal.take");
  }

  #release() {
    this.#released = true;
    this.#send({ type: "release" });
  }

  /** Acknowledge a batch after it was drawn: the gateway then sends the next one. */
  #draw(frame) {
    this.#screen.draw(frame);
    const acknowledge = () => this.#send({ type: "ack", n: frame.n });
    if (document.hidden) acknowledge();
    else requestAnimationFrame(acknowledge);
  }

  #showState({ agent, public_status: status, driving, ended, exit_status: exit }) {
    this.#state.replaceChildren(h("strong", {}, agent), stateMark(status));
    this.#drive.disabled = ended;
    if (ended) this.#say(exit === null ? t("terminal.ended") : t("terminal.exited", { status: exit }));
    this.#showDriving(driving);
  }

  #showDriving(driving) {
    if (driving === this.#driving) return;
    this.#driving = driving;
    this.#busy = false;
    this.#drive.textContent = t(driving ? "terminal.release" : "terminal.drive");
    this.#drive.setAttribute("aria-pressed", String(driving));
    this.#fit.hidden = this.#keys.hidden = !driving;
    if (driving) {
      this.#say("");
      this.#input.focus();
    } else if (this.#open) {
      if (!this.#released && !this.#drive.disabled) this.#say(t("terminal.taken"));
      this.#drive.focus();
    }
    this.#released = false;
  }

  #pressed(event) {
    if (event.ctrlKey && event.key === ".") {
      event.preventDefault();
      event.stopPropagation();
      this.#release();
      return;
    }
    // Not to the page, whose keys would close the dialog or act behind it.
    event.stopPropagation();
    const name = terminalKey(event);
    if (name === null) return;
    event.preventDefault();
    this.#send({ type: "key", name });
  }

  #press(name) {
    this.#send({ type: "key", name });
    this.#input.focus();
  }

  #type() {
    if (this.#input.value !== "") this.#send({ type: "text", text: this.#input.value });
    this.#input.value = "";
  }

  #paste(event) {
    event.preventDefault();
    this.#send({ type: "paste", text: event.clipboardData.getData("text/plain") });
  }

  #say(text) {
    this.#said.textContent = text;
    this.#said.hidden = text === "";
  }
}
