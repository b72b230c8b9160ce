/** Views of pictures, recordings and files in messages. Bitmaps are shown, audio has a player, other files are downloads. */
import { h } from "/shared/dom.js";
import { icon } from "/shared/icons.js";
import { t } from "/shared/language.js";

const SOUND = /^audio\/[a-z0-9.+-]+$/;
const BITMAP = /^image\/(png|jpeg|gif|webp|avif)$/;

/**
 * @param {{mime_type: string, data?: string, preview?: string, name?: string, alt_text?: string, width?: number, height?: number}} file
 * `data` is base64; an upload has a `preview` instead, a data URL, or "" if it cannot be shown
 */
export function attachmentView(file) {
  const name = file.alt_text || file.name || "";
  if (file.preview === "") return h("span", { class: "file-chip" }, icon("file"), name || t("file.attachment"));
  if (BITMAP.test(file.mime_type)) return picture(file, name || t("file.image"));
  const kind = file.mime_type.split(";")[0];
  return SOUND.test(kind) ? sound(kind, file, name || t("file.recording")) : download(file, name || t("file.attachment"));
}

function sound(kind, { data, preview }, name) {
  return h("audio", { controls: true, preload: "metadata", src: preview ?? `data:${kind};base64,${data}`, "aria-label": name, title: name });
}

function picture(file, name) {
  const { mime_type, data, preview, width, height } = file;
  const unreadable = (event) => event.target.replaceWith(h("span", {}, download(file, name), " ", t("file.no_picture")));
  return h("img", { onerror: unreadable, class: "picture", src: preview ?? `data:${mime_type};base64,${data}`, alt: name, width, height, title: name });
}

/** A link to opaque bytes: an HTML or SVG file is saved, never opened in the page's origin. */
function download({ data }, name) {
  const href = `data:application/octet-stream;base64,${data}`;
  return h("a", { class: "file-chip", href, download: name }, icon("file"), name);
}
