/** @param {Blob} blob @returns {Promise<string>} its bytes as base64 */
export async function base64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const chunks = [];
  // In chunks, because a call with a million arguments overflows the stack.
  for (let i = 0; i < bytes.length; i += 0x8000) chunks.push(String.fromCharCode(...bytes.subarray(i, i + 0x8000)));
  return btoa(chunks.join(""));
}

/** Return whether a blob has at most `budget` characters of base64. */
export function fits(blob, budget) {
  return Math.ceil(blob.size / 3) * 4 <= budget;
}
