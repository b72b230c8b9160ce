/**
 * Form of a plugin's configuration, made of the JSON Schema in its manifest; no script of a plugin runs here.
 *
 * @typedef {{element: Element, read: () => any}} Field `read` returns the value, or undefined if there is none
 */
import { h } from "./dom.js";
import { t } from "./language.js";

/** Return the fields of an object. @returns {Field} */
export function objectField(schema, values, hidden, path = []) {
  const fields = Object.entries(schema.properties ?? {}).map(([name, inner]) => [name, field(name, inner, values?.[name], hidden, [...path, name])]);
  const element = h("div", { class: "fields" }, ...fields.map(([, one]) => one.element));
  return { element, read: () => Object.fromEntries(fields.map(([name, one]) => [name, one.read()]).filter(([, value]) => value !== undefined)) };
}

/** Return a field for a secret, whose value is never here: empty text keeps it. @returns {Field} */
export function secretField(name, isSet, description = "") {
  const input = h("input", { type: "password", autocomplete: "new-password", placeholder: t(isSet ? "plugins.kept" : "plugins.unset") });
  return labelled(name, description, input, () => input.value || undefined);
}

function field(name, schema, value, hidden, path) {
  const { title = name, description = "", type } = schema;
  if (schema.writeOnly || schema.format === "password" || hidden.includes(path.join("."))) return secretField(title, hidden.includes(path.join(".")), description);
  if (schema.enum) return choiceField(title, schema, value);
  if (type === "boolean") {
    const input = h("input", { type: "checkbox", checked: value === true });
    return labelled(title, description, input, () => (value === undefined && !input.checked ? undefined : input.checked));
  }
  if (type === "integer" || type === "number") {
    const step = type === "integer" ? 1 : "any";
    const input = h("input", { type: "number", step, min: schema.minimum, max: schema.maximum, value });
    return labelled(title, description, input, () => (input.value === "" ? undefined : Number(input.value)));
  }
  if (type === "object" && schema.properties) {
    const inner = objectField(schema, value, hidden, path);
    return { element: h("fieldset", {}, h("legend", {}, title), h("small", { class: "muted" }, description), inner.element), read: inner.read };
  }
  if (type === "array" && schema.items?.type === "string") {
    const area = h("textarea", { rows: 3 }, (value ?? []).join("\n"));
    const lines = () => area.value.split("\n").map((line) => line.trim()).filter(Boolean);
    return labelled(title, `${description} ${t("plugins.lines")}`, area, () => (value === undefined && !lines().length ? undefined : lines()));
  }
  if (type === "string") {
    const input = h("input", { type: "text", maxlength: schema.maxLength, value });
    return labelled(title, description, input, () => input.value || undefined);
  }
  const area = h("textarea", { rows: 4, spellcheck: "false" }, value === undefined ? "" : JSON.stringify(value, null, 2));
  return labelled(title, `${description} JSON`, area, () => (area.value.trim() ? JSON.parse(area.value) : undefined));
}

function choiceField(title, schema, value) {
  const options = schema.enum.map((each, index) => h("option", { value: index, selected: each === value }, String(each)));
  const select = h("select", {}, value === undefined && h("option", { value: "" }), ...options);
  return labelled(title, schema.description ?? "", select, () => (select.value === "" ? undefined : schema.enum[Number(select.value)]));
}

function labelled(title, description, input, read) {
  return { element: h("label", { class: "field" }, h("span", {}, title), input, description.trim() && h("small", { class: "muted" }, description.trim())), read };
}

/** Return the JSON Merge Patch (RFC 7396) from one value to another; undefined if they are equal. */
export function difference(before, after) {
  if (!isTable(before) || !isTable(after)) return JSON.stringify(before) === JSON.stringify(after) ? undefined : after ?? null;
  const changes = [...new Set([...Object.keys(before), ...Object.keys(after)])].map((name) => [name, difference(before[name], after[name])]);
  const found = changes.filter(([, change]) => change !== undefined);
  return found.length ? Object.fromEntries(found) : undefined;
}

function isTable(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
