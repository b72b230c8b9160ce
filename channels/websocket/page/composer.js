/**
 * `<tl-composer>`: input for messages. Sends `send` {text, uploads}, `stop` and `notice` events. A message whose
 * files are being uploaded is sent when they are.
 * Enter or Ctrl+Enter sends, as chosen; Shift+Enter breaks the line; Escape stops the answer.
 */
import "./attachments.js";
import { CommandMenu } from "./command_menu.js";
import { h } from "/shared/dom.js";
import { draft, keepDraftText, placeOf } from "./drafts.js";
import { clock, size } from "/shared/figures.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";
import { MentionMenu } from "./mention_menu.js";
import { Recorder } from "./recorder.js";
import { sendKey, sends } from "./send_key.js";

/** Bytes of a frame that are not text: ids, and the names of the most uploads. */
const FRAME_ROOM = 4_000;

export class Composer extends HTMLElement {
  #input = h("textarea", { id: "message", rows: "1", dir: "auto", placeholder: t("composer.placeholder"), "aria-label": t("composer.message"), autocomplete: "off" });
  #files = h("input", { type: "file", multiple: true, hidden: true, "aria-label": t("composer.attach") });
  #attachments = h("tl-attachments", { hidden: true });
  #stop = h("button", { type: "button", class: "round stop", "aria-label": t("composer.stop"), title: t("composer.stop_key"), hidden: true }, icon("stop"));
  #send = h("button", { type: "submit", class: "round send", "aria-label": t("composer.send") }, icon("send"));
  #record = h("button", { type: "button", class: "round quiet record", "aria-label": t("composer.record"), title: t("composer.record") }, icon("microphone"));
  #commands = h("button", { type: "button", class: "quiet commands-button", onclick: () => this.type("/") }, `/ ${t("composer.commands")}`);
  #elapsed = h("span", { class: "elapsed", role: "timer", "aria-label": t("composer.recorded"), hidden: true });
  #recorder = new Recorder((seconds) => (this.#elapsed.textContent = clock(seconds)), (blob, full) => this.#recorded(blob, full));
  #menu = new CommandMenu(this.#input);
  #mentions = new MentionMenu(this.#input, (question) => this.#emit("mention", question));
  #hint = h("p", { class: "hint" });
  #waits = h("p", { class: "waits", role: "status", hidden: true }, t("composer.waits"));
  /** The number of refused files when the user sent the message that waits for its files; null if none does. */
  #sent = null;
  #shown = {};
  /** @type {import("./drafts.js").Place | null} */
  #place = null;
  /** The text and the files when the shown version became unknown: what is added belongs to the one that comes. */
  #since = null;

  connectedCallback() {
    if (this.firstChild) return;
    const attach = h("button", { type: "button", class: "round quiet", "aria-label": t("composer.attach"), title: t("composer.attach_what") }, icon("attach"));
    const row = h("div", { class: "row" }, attach, this.#record, this.#elapsed, this.#commands, this.#stop, this.#send);
    const form = h("form", { "aria-label": t("composer.placeholder") }, this.#menu.element, this.#mentions.element, this.#attachments, this.#waits, this.#input, row, this.#files);
    this.append(form, this.#hint);
    document.addEventListener("sendkey", () => this.#showSendKey());
    this.#showSendKey();
    form.addEventListener("submit", (event) => this.#submit(event));
    attach.addEventListener("click", () => this.#files.click());
    this.#record.addEventListener("click", () => this.#recordOrStop());
    this.#files.addEventListener("change", () => this.#attach(this.#files));
    this.#stop.addEventListener("click", () => this.#emit("stop"));
    this.#input.addEventListener("input", () => this.#typed());
    this.#input.addEventListener("keydown", (event) => this.#pressed(event));
    this.#attachments.addEventListener("changed", () => this.#attachmentsChanged());
    this.#takeFiles();
  }

  /** @param {{session: string | null, branch: string | undefined, running: boolean, online: boolean, uploadBytes: number, frameBytes: number, commands: object[], triggers: string[], completions: object | null}} props */
  render(props) {
    const before = this.#shown;
    this.#shown = props;
    this.#menu.commands = props.commands;
    this.#mentions.triggers = props.triggers;
    if (before.completions !== props.completions) this.#mentions.offer(props.completions);
    const place = placeOf(props.session, props.branch);
    const isNew = this.#place?.session !== place.session;
    if (!isNew && this.#place.branch !== place.branch && this.#since) this.#moveDraft(place);
    else if (isNew || this.#place.branch !== place.branch) this.#showDraft(place);
    if (props.branch !== undefined) this.#since = null;
    else if (isNew || !this.#since) this.#since = { text: this.#input.value, files: this.#attachments.items };
    if (before.running !== props.running) this.#showButtons();
    this.#attachments.most = props.uploadBytes;
    if (props.online && !before.online) this.#attachments.resume();
  }

  focusInput() {
    this.#input.focus();
  }

  /** Append text as if it was typed. */
  type(text) {
    this.#input.focus();
    this.#input.value += text;
    this.#typed();
  }

  /** Add a text that was written elsewhere to the draft of a session, as a paragraph of its own. */
  add(session, text) {
    const place = this.#place?.session === session ? this.#place : placeOf(session);
    keepDraftText(place, joined(place === this.#place ? this.#input.value : draft(place).text, text));
    if (place !== this.#place) return;
    this.#input.value = draft(place).text;
    this.#typed();
  }

  /** Move the draft of a session that does not exist to a new chat. Return whether there was one. */
  moveToNew() {
    const text = this.#input.value;
    if (!this.#place || (!text.trim() && this.#attachments.isEmpty)) return false;
    const [gone, fresh] = [this.#place, placeOf(null, "")];
    keepDraftText(gone, "");
    keepDraftText(fresh, joined(draft(fresh).text, text));
    this.#attachments.move([], fresh);
    this.#showDraft(gone);
    return true;
  }

  #submit(event) {
    event.preventDefault();
    const text = this.#input.value.trim();
    const { uploads, isEmpty, isPending, refusals } = this.#attachments;
    if (!text && isEmpty) return;
    // The server closes a socket that sends more, and each new socket would send it again.
    const { frameBytes } = this.#shown;
    if (bytesOf(text) > frameBytes - FRAME_ROOM) return this.#emit("notice", t("composer.too_long", { size: size(frameBytes) }));
    this.#wait(isPending ? refusals : null);
    if (isPending) return;
    this.#input.value = "";
    this.#attachments.clear();
    if (this.#since) this.#since = { text: "", files: [] };
    this.#typed();
    this.#input.focus();
    this.#emit("send", { text, uploads });
  }

  /** Send the message that waits for its files, unless one of them was refused since. */
  #attachmentsChanged() {
    this.#showButtons();
    if (this.#sent === null) return;
    const { isPending, refusals } = this.#attachments;
    if (refusals > this.#sent) this.#wait(null);
    else if (!isPending) this.querySelector("form").requestSubmit();
  }

  #wait(refusals) {
    this.#sent = refusals;
    this.#waits.hidden = refusals === null;
  }

  #pressed(event) {
    // 229 is a key of an input method: Safari ends the composition before the Enter that confirms it.
    if (event.isComposing || event.keyCode === 229 || this.#mentions.pressed(event) || this.#menu.pressed(event)) return;
    if (event.key === "ArrowUp" && this.#input.value === "") return event.preventDefault(), this.#emit("edit-last");
    if (sends(event)) this.#submit(event);
  }

  #typed() {
    if (this.#place) keepDraftText(this.#place, this.#input.value);
    this.#menu.update();
    this.#mentions.update();
    this.#showButtons();
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }

  /** Show the stop button during an answer; the send button then appears only with content, and queues it. */
  #showButtons() {
    const empty = this.#input.value.trim() === "" && this.#attachments.isEmpty;
    const { running } = this.#shown;
    this.#stop.hidden = !running;
    this.#send.hidden = Boolean(running) && empty;
    this.#send.disabled = empty;
    // A command is at the beginning of a message.
    this.#commands.disabled = this.#input.value !== "";
    this.#send.title = t(running ? "composer.queue" : "composer.send_key", { key: t(`keys.send_${sendKey()}`) });
  }

  #showSendKey() {
    const [before, after] = t(`composer.hint_${sendKey()}`).split("?");
    this.#hint.replaceChildren(before, h("kbd", {}, "?"), after);
    this.#showButtons();
  }

  /** Show the draft of a version of a session. */
  #showDraft(place) {
    this.#place = place;
    this.#wait(null);
    this.#input.value = draft(place).text;
    this.#attachments.show(place);
    this.#typed();
  }

  /** Show the draft of the version that came, and move there what was added since the other one was replaced. */
  #moveDraft(place) {
    const { text, files } = this.#since;
    const written = this.#input.value;
    const held = joined(draft(place).text, written.startsWith(text) ? written.slice(text.length) : written);
    keepDraftText(this.#place, text);
    this.#place = place;
    // The cursor stays in a text that stays.
    if (held !== written) this.#input.value = held;
    this.#typed();
    this.#attachments.move(files, place);
    if (held === "" && this.#attachments.isEmpty) this.#wait(null);
  }

  #attach(source) {
    const files = [...source.files];
    if (source === this.#files) this.#files.value = "";
    this.#attachments.add(files);
  }

  async #recordOrStop() {
    if (this.#recorder.isRecording) return this.#recorder.stop();
    const refusal = this.#attachments.hasRecording ? t("composer.one_recording") : await this.#recorder.start(this.#attachments.most);
    if (refusal) this.#emit("notice", refusal);
    this.#showRecording();
  }

  #recorded(blob, full) {
    this.#showRecording();
    this.#attachments.add([new File([blob], t("composer.voice"), { type: blob.type })]);
    if (full) this.#emit("notice", t("composer.full"));
    this.#input.focus();
  }

  #showRecording() {
    const label = this.#recorder.isRecording ? t("composer.record_stop") : t("composer.record");
    this.#record.setAttribute("aria-label", label);
    this.#record.title = label;
    this.#record.toggleAttribute("data-recording", this.#recorder.isRecording);
    this.#elapsed.hidden = !this.#recorder.isRecording;
    this.#elapsed.textContent = clock(0);
  }

  /** Accept files that are pasted into the text or dropped anywhere on the page. */
  #takeFiles() {
    this.#input.addEventListener("paste", (event) => {
      // Word and Excel put a picture of the text beside it; a copied picture has no plain text.
      const isDocument = event.clipboardData.types.includes("text/html") && event.clipboardData.types.includes("text/plain");
      if (event.clipboardData.files.length > 0 && !isDocument) event.preventDefault(), this.#attach(event.clipboardData);
    });
    // The browser itself puts a text into the field that it is dropped on; elsewhere it would leave the page.
    const isText = ({ dataTransfer, target }) => !dataTransfer.types.includes("Files") && target.closest?.("input, textarea");
    document.addEventListener("dragover", (event) => isText(event) || event.preventDefault());
    document.addEventListener("drop", (event) => {
      if (!isText(event)) event.preventDefault();
      if (event.dataTransfer.files.length > 0) this.#attach(event.dataTransfer);
    });
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  }
}

/** Return a text with another one as a paragraph of its own. */
function joined(text, added) {
  if (!text.trim()) return added.trimStart();
  return added.trim() ? `${text.trimEnd()}\n\n${added.trimStart()}` : text;
}

/** Return the bytes of a text in a frame. */
function bytesOf(text) {
  return new Blob([JSON.stringify(text)]).size;
}

customElements.define("tl-composer", Composer);
