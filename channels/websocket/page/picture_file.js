/** Conversion of a picture file to an image part, scaled down to fit the limit: a phone's photo has 4 MB. */
import { base64, fits } from "./base64.js";
import { t } from "./language.js";

const SENT_AS_IS = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const ATTEMPTS = [
  { edge: 2048, quality: 0.85 },
  { edge: 1280, quality: 0.8 },
  { edge: 800, quality: 0.7 },
];

/**
 * @param {File} file
 * @param {number} budget maximum base64 characters
 * @returns {Promise<{part?: object, refusal?: "unreadable" | "too large"}>} the part, or the reason for the refusal
 */
export async function pictureFrom(file, budget) {
  const bitmap = await decoded(file);
  if (bitmap === null) return { refusal: "unreadable" };
  if (SENT_AS_IS.includes(file.type) && fits(file, budget)) return { part: await part(file, file.name, bitmap) };
  for (const attempt of ATTEMPTS) {
    const smaller = await scaled(bitmap, attempt);
    if (smaller && fits(smaller.blob, budget)) return { part: await part(smaller.blob, file.name, smaller) };
  }
  return { refusal: "too large" };
}

async function decoded(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    return null;
  }
}

async function scaled(bitmap, { edge, quality }) {
  const factor = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * factor));
  canvas.height = Math.max(1, Math.round(bitmap.height * factor));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", quality));
  return blob && { blob, width: canvas.width, height: canvas.height };
}

async function part(blob, name, { width, height }) {
  return { type: "image", data: await base64(blob), mime_type: blob.type, alt_text: name || t("file.picture"), width, height };
}
