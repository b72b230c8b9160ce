/** Sentences of errors of providers, made of kind, provider and status: the same as the gateway's, in each language. */
import { has, t } from "./language.js";

/** Return the sentence of an error part; other errors have only that of the gateway. @param {{error_name: string, message: string, metadata?: {provider?: string, original?: string, code?: string}}} part */
export function errorSentence({ error_name: name, message, metadata = {} }) {
  const { provider, original, code } = metadata;
  const key = `said.${name}${name === "AuthFailedError" && code === "403" ? ".403" : ""}`;
  return original && has(key) ? t(key, { provider: provider || t("said.provider"), status: code ? ` (${code})` : "" }) : message;
}
