/** Titles of errors; the gateway's class names appear only in its log and under Details. */
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
  "Request refused": ["BadRequestError", "InvalidRequestError", "TooLargeError", "FetchError", "AddressRefusedError"],
  "Settings wrong": ["SettingsError"],
  "Tool failed": ["ToolError"],
};
const LABELS = new Map(Object.entries(KINDS).flatMap(([label, names]) => names.map((name) => [name, label])));
const NAME = "[A-Z]\\w*(?:Error|Exception|Refused|Timeout|Warning)";
const IN_BRACKETS = new RegExp(` ?\\(${NAME}\\)`, "g");
const BEFORE_TEXT = new RegExp(`\\b${NAME}: ?`, "g");

/** @param {string} name the error's stable name */
export function errorKind(name) {
  return t(`kind.${LABELS.get(name) ?? "other"}`);
}

/** Return the message without class names. @param {string} message */
export function withoutClassNames(message) {
  return message.replace(IN_BRACKETS, "").replace(BEFORE_TEXT, "").trim();
}
