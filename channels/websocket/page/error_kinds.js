/** Titles of errors, and what to do. Their sentences are the same as on all channels. */
import { t } from "/shared/language.js";

const KINDS = {
  "Access denied": ["UnauthorizedError", "ForbiddenError", "ForeignPageError"],
  "Answer unreadable": ["DeltaParseError"],
  "API key rejected": ["AuthFailedError"],
  "Budget used up": ["BudgetExceededError"],
  "Conversation too long": ["ContextLengthError"],
  "Declined by the provider": ["ContentFilterError"],
  "Gateway busy": ["OverloadedError", "BackpressureError", "TooManyRequestsError"],
  "Internal error": ["InternalError", "StoreError"],
  "Model not found": ["ModelNotFoundError", "ProviderResolutionError"],
  "No answer from the model": ["EmptyAnswerError", "StreamTimeoutError", "StreamAbortedError"],
  "No model could answer": ["FallbackExhaustedError"],
  "Not delivered": ["PlacementRefused"],
  "Not possible with this model": ["CapabilityError"],
  "Plugin failed": ["PluginError"],
  "Provider unavailable": ["ProviderUnavailableError", "ServerFailedError", "ProviderError"],
  "Rate limit reached": ["RateLimitError"],
  "Quota used up": ["QuotaExceededError"],
  "Request refused": ["BadRequestError", "InvalidRequestError", "TooLargeError", "FetchError", "AddressRefusedError"],
  "Settings wrong": ["SettingsError"],
  "Tool failed": ["ToolError"],
};
const LABELS = new Map(Object.entries(KINDS).flatMap(([label, names]) => names.map((name) => [name, label])));
/** @param {string} name the error's stable name */
export function errorKind(name) {
  return t(`kind.${LABELS.get(name) ?? "other"}`);
}

/** Return what the reader can do about an error. @param {string} name the error's stable name */
export function errorAdvice(name) {
  return t(`advice.${LABELS.get(name) ?? "other"}`);
}
