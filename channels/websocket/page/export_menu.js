/** Entries of menus that download a conversation: its shown version, or all of them. */
import { downloadSession } from "./api.js";
import { t } from "/shared/language.js";

/** @param {string} id @param {Record<string, object[]>} [versions] those of the conversation, as far as they are known */
export function exportEntries(id, versions = {}) {
  const branches = Object.keys(versions).length > 0 ? ["shown", "all"] : ["shown"];
  const entry = (format, branch) => ({ label: t(`export.${format}_${branch}`), icon: "download", act: () => downloadSession(id, format, branch) });
  return branches.flatMap((branch) => [entry("markdown", branch), entry("json", branch)]);
}
