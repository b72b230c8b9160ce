/** Upload of one file, with its progress. `fetch` tells no progress of a request. */
import { t } from "/shared/language.js";

/**
 * @param {Blob} blob @param {{name: string, width?: number, height?: number}} query
 * @param {(share: number) => void} onProgress called with the share that is sent, 0 to 1
 * @returns {{done: Promise<{id?: string, refusal?: string, lost?: boolean}>, abort: () => void}} `lost`: no connection
 */
export function upload(blob, query, onProgress) {
  const request = new XMLHttpRequest();
  const done = new Promise((resolve) => {
    request.upload.addEventListener("progress", ({ loaded, total }) => onProgress(total ? loaded / total : 0));
    request.addEventListener("load", () => resolve(outcome(request)));
    request.addEventListener("error", () => resolve({ lost: true }));
  });
  request.responseType = "json";
  request.open("POST", `/api/files?${new URLSearchParams(query)}`);
  request.send(blob);
  return { done, abort: () => request.abort() };
}

function outcome({ status, response }) {
  if (status === 201) return { id: response.id };
  const reason = response?.message ?? `HTTP ${status}`;
  return { refusal: response?.error_name === "PartValidationError" ? t("file.not_read", { reason }) : reason };
}

/** Remove an upload that is not needed. One that stays expires. */
export function removeUpload(id) {
  fetch(`/api/files/${id}`, { method: "DELETE" }).catch(() => {});
}
