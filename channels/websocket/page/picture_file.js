/** Preparation of picture files: a phone's photo has 4 MB, and models see no more in it than in a smaller one. */

const SENT_AS_IS = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/** Most bytes of a picture; larger ones are scaled down. */
const MOST_BYTES = 525_000;
const ATTEMPTS = [
  { edge: 2048, quality: 0.85 },
  { edge: 1280, quality: 0.8 },
  { edge: 800, quality: 0.7 },
];
const PREVIEW = { edge: 480, quality: 0.8, type: "image/webp" };
const SMALL_BYTES = 40_000;

/** Return whether a file is a picture that can be shown. @param {File} file */
export function isPicture({ type }) {
  return type.startsWith("image/") && !type.startsWith("image/svg");
}

/**
 * @param {File} file
 * @returns {Promise<{blob: Blob, preview: string, width: number, height: number} | null>} what to send, and a small
 * picture as a data URL; null if the browser cannot read the file
 */
export async function pictureFrom(file) {
  const bitmap = await decoded(file);
  if (bitmap === null) return null;
  const sent = await fitting(file, bitmap);
  const small = sent.blob.size <= SMALL_BYTES ? sent : await scaled(bitmap, PREVIEW);
  return { ...sent, preview: await dataUrl(small.blob) };
}

/** @param {Blob} blob @returns {Promise<string>} its content as a data URL */
export function dataUrl(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => resolve(""));
    reader.readAsDataURL(blob);
  });
}

async function decoded(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    return null;
  }
}

async function fitting(file, bitmap) {
  if (SENT_AS_IS.includes(file.type) && file.size <= MOST_BYTES) return { blob: file, width: bitmap.width, height: bitmap.height };
  let smaller;
  for (const attempt of ATTEMPTS) {
    smaller = await scaled(bitmap, attempt);
    if (smaller.blob.size <= MOST_BYTES) break;
  }
  return smaller;
}

async function scaled(bitmap, { edge, quality, type = "image/jpeg" }) {
  const factor = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * factor));
  canvas.height = Math.max(1, Math.round(bitmap.height * factor));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, type, quality));
  return { blob, width: canvas.width, height: canvas.height };
}
