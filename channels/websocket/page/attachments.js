/**
 * `<tl-attachments>`: files of the message that is being written, as chips. Each is uploaded at once; the message
 * names the uploads. An upload goes on while another draft is shown. Sends `changed`.
 *
 * @typedef {import("./file_chip.js").Item} Item
 * @typedef {import("./drafts.js").Place} Place
 * @typedef {{place: Place, items: Item[]}} List the files of a draft; each has it as its `list`
 * @typedef {{id: string, name: string, mime_type: string, preview: string}} Upload
 */
import { h, reconcile } from "/shared/dom.js";
import { draft, keepDraftFiles } from "./drafts.js";
import { size } from "/shared/figures.js";
import "./file_chip.js";
import { newId } from "/shared/ids.js";
import { t } from "/shared/language.js";
import { dataUrl, isPicture, pictureFrom } from "./picture_file.js";
import { removeUpload, upload } from "./upload.js";

/** Most bytes of a recording that the chip plays: drafts keep it. */
const MOST_PLAYED = 525_000;
/** Most files of a message; the server accepts no more. */
const MOST_FILES = 32;
/** Pause before an upload without a connection is tried again. */
const AGAIN_MS = 10_000;

export class Attachments extends HTMLElement {
  /** Most bytes of a file. */
  most = 10_000_000;
  /** The files of each draft that was shown. @type {Map<string, List>} */
  #lists = new Map();
  /** @type {List} */
  #list = { place: null, items: [] };

  /** The files that are uploaded. @returns {Upload[]} */
  get uploads() {
    return uploaded(this.#list.items);
  }

  /** Return whether there is nothing that could be sent. */
  get isEmpty() {
    return this.#list.items.every(({ state }) => state === "refused");
  }

  /** Return whether a file is not uploaded yet. */
  get isPending() {
    return this.#list.items.some(isPending);
  }

  get hasRecording() {
    return this.#list.items.some(isRecording);
  }

  get refusals() {
    return this.#list.items.filter(({ state }) => state === "refused").length;
  }

  /** The files that are shown. @returns {readonly Item[]} */
  get items() {
    return [...this.#list.items];
  }

  /** Show the files of a draft. @param {Place} place */
  show(place) {
    const name = JSON.stringify(place);
    if (!this.#lists.has(name)) this.#lists.set(name, { place, items: draft(place).uploads.map((held) => ({ ...held, key: held.id, state: "done", progress: 1 })) });
    this.#list = this.#lists.get(name);
    for (const item of this.#list.items) item.list = this.#list;
    this.#draw();
  }

  /** Show the files of another draft, and move those there that were added since. @param {readonly Item[]} since @param {Place} place */
  move(since, place) {
    const from = this.#list;
    const added = from.items.filter((item) => !since.includes(item));
    from.items = from.items.filter((item) => since.includes(item));
    this.show(place);
    for (const item of added) item.list = this.#list;
    this.#list.items.push(...added);
    this.#changed(from);
    this.#changed(this.#list);
  }

  /** Add files. @param {File[]} files */
  add(files) {
    const { items } = this.#list;
    for (const file of files) {
      const item = { key: newId(), name: file.name, mime_type: file.type, preview: "", state: "preparing", progress: 0, list: this.#list };
      if (items.length >= MOST_FILES) refuse(item, t("file.too_many", { name: file.name, count: MOST_FILES }));
      else if (file.type.startsWith("audio/") && items.some(isRecording)) refuse(item, t("file.second_recording", { name: file.name }));
      items.push(item);
      if (item.state === "preparing") this.#start(item, file);
    }
    this.#changed(this.#list);
  }

  /** Forget the files, which a message has now. */
  clear() {
    this.#list.items.length = 0;
    this.#changed(this.#list);
  }

  /** Try the uploads again that wait for the connection. */
  resume() {
    for (const { items } of this.#lists.values()) for (const item of items) if (item.state === "waiting") item.again();
  }

  async #start(item, file) {
    let sent = { blob: file };
    if (isPicture(file)) {
      sent = await pictureFrom(file);
      if (sent === null) return this.#refuse(item, t("file.unreadable", { name: file.name }));
    } else if (file.type.startsWith("audio/") && file.size <= MOST_PLAYED) sent = { blob: file, preview: await dataUrl(file) };
    const { blob, preview = "", width, height } = sent;
    if (blob.size === 0) return this.#refuse(item, t("file.empty", { name: file.name }));
    if (blob.size > this.most) return this.#refuse(item, t("file.too_large", { name: file.name, size: size(this.most) }));
    item.preview = preview;
    item.mime_type = blob.type.split(";")[0];
    item.again = () => this.#upload(item, blob, { name: file.name || t("file.attachment"), ...(width ? { width, height } : {}) });
    if (isHeld(item)) await item.again();
  }

  async #upload(item, blob, query) {
    item.state = "uploading";
    item.progress = 0;
    const running = upload(blob, query, (share) => {
      item.progress = share;
      if (item.list === this.#list) this.#draw();
    });
    item.abort = running.abort;
    this.#changed(item.list);
    const { id, refusal, lost } = await running.done;
    if (!isHeld(item)) return id && removeUpload(id);
    if (refusal) return this.#refuse(item, refusal);
    item.state = lost ? "waiting" : "done";
    item.id = id;
    this.#changed(item.list);
    // A connection can be cut while the socket stays.
    if (lost) setTimeout(() => item.state === "waiting" && isHeld(item) && item.again(), AGAIN_MS);
  }

  #refuse(item, reason) {
    refuse(item, reason);
    this.#changed(item.list);
  }

  #remove(item) {
    item.list.items.splice(item.list.items.indexOf(item), 1);
    item.abort?.();
    if (item.id) removeUpload(item.id);
    this.#changed(item.list);
  }

  #changed(list) {
    keepDraftFiles(list.place, uploaded(list.items));
    if (list === this.#list) this.#draw();
  }

  #draw() {
    this.hidden = this.#list.items.length === 0;
    reconcile(this, this.#list.items, ({ key }) => key, () => h("tl-chip"), (chip, item) => chip.render(item, () => this.#remove(item)));
    this.dispatchEvent(new CustomEvent("changed"));
  }
}

function refuse(item, reason) {
  item.state = "refused";
  item.reason = reason;
}

/** Return whether a file was neither removed nor sent. @param {Item} item */
function isHeld(item) {
  return item.list.items.includes(item);
}

function isPending({ state }) {
  return state !== "done" && state !== "refused";
}

function isRecording({ mime_type, state }) {
  return mime_type.startsWith("audio/") && state !== "refused";
}

/** @param {Item[]} items @returns {Upload[]} */
function uploaded(items) {
  return items.filter(({ state }) => state === "done").map(({ id, name, mime_type, preview }) => ({ id, name, mime_type, preview }));
}

customElements.define("tl-attachments", Attachments);
