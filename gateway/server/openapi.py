"""The API description at ``/openapi.json``: the routes as OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.contract.errors import (
    ForbiddenError,
    InvalidRequestError,
    TooManyRequestsError,
    TrunklineError,
    UnauthorizedError,
)
from gateway.server.errors import ConfirmIdentityError, SlowRequestError, TooLargeError
from gateway.server.routes import Route

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_PATTERNS = re.compile(r":[^}]*}")
"""Patterns of path parameters in aiohttp's syntax. OpenAPI has them in the parameters instead."""


def describe_routes(
    routes: Sequence[Route], version: str, plugins: Mapping[str, Sequence[Route]], *, guarded: bool
) -> dict[str, Any]:
    """Return the document. ``guarded`` is whether this gateway requires a token; else a token is optional.

    The names of the schemas of ``plugins`` begin with the plugin, so that they never rename those of others.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas, components = _schemas(_types_of(routes))
    shown = _describe(routes, schemas, components, paths)
    for plugin, offered in plugins.items():
        types = [kind for kind in _types_of(offered) if kind not in schemas]
        named = f"{re.sub('[^A-Za-z0-9_]', '_', plugin)}_{{name}}"
        own, parts = _schemas(types, named)
        shown |= _describe(offered, {**own, **schemas}, {**components, **parts}, paths, parts)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Trunkline", "version": version},
        "paths": paths,
        "components": {
            "schemas": shown,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if guarded else [{}, {"token": []}],
    }
    return document


def _describe(
    routes: Sequence[Route],
    schemas: Mapping[Any, dict[str, Any]],
    components: Mapping[str, Any],
    paths: dict[str, dict[str, Any]],
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Add routes to the paths, and return the schemas that are not those of their parameters."""
    for route in routes:
        paths.setdefault(_PATTERNS.sub("}", route.path), {})[route.method.lower()] = _operation(
            route, schemas, components
        )
    parameters = {_component(kind, schemas) for kind in _parameter_types(routes)}
    return {
        name: schema
        for name, schema in (components if own is None else own).items()
        if name not in parameters
    }


def _types_of(routes: Sequence[Route]) -> list[type[Struct]]:
    return list(dict.fromkeys(kind for route in routes for kind in _types(route)))


def _schemas(
    types: Sequence[type[Struct]], named: str = "{name}"
) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    template = _REF.replace("{name}", named)
    schemas, components = msgspec.json.schema_components(types, ref_template=template)
    found = {named.replace("{name}", name): schema for name, schema in components.items()}
    return dict(zip(types, _portable(schemas), strict=True)), _portable(found)


def _component(kind: type[Struct], schemas: Mapping[Any, dict[str, Any]]) -> str:
    return str(schemas[kind]["$ref"]).rpartition("/")[2]


def _portable(schema: Any) -> Any:
    """Return a schema without ``items: false`` and enums of booleans, which client generators cannot read.

    Nothing is lost without ``items: false``: ``maxItems`` allows no items beside those of ``prefixItems``.
    """
    if isinstance(schema, list):
        return [_portable(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {name: _portable(value) for name, value in cast("dict[str, Any]", schema).items()}
    if fields.get("type") == "array" and not fields.get("items", False):
        fields.pop("items", None)
        if "prefixItems" not in fields:
            fields["items"] = {}
    if fields.get("enum") == [False]:
        fields = {"type": "boolean"}
    return fields


def _types(route: Route) -> Iterable[type[Struct]]:
    types = route.signature
    yield from (route.error_body, types.path, types.query, types.headers, *route.also.values())
    yield from (kind for kind in (types.body, route.answer) if kind is not None)


def _parameter_types(routes: Sequence[Route]) -> set[type[Struct]]:
    signatures = [route.signature for route in routes]
    return {kind for types in signatures for kind in (types.path, types.query, types.headers)}


def _operation(
    route: Route, schemas: Mapping[Any, dict[str, Any]], components: Mapping[str, Any]
) -> dict[str, Any]:
    types = route.signature
    parameters = [
        *_parameters("path", components[_component(types.path, schemas)]),
        *_parameters("query", components[_component(types.query, schemas)]),
        *_parameters("header", components[_component(types.headers, schemas)]),
    ]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": _responses(route, schemas, bool(parameters)),
    }
    if parameters:
        operation["parameters"] = parameters
    if types.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas[types.body]}}}
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": {route.takes: {}}}
    operation["x-role"] = "none" if route.open else route.role
    if route.needs_proof:
        operation["x-needs-proof"] = True
    if route.open:
        operation["security"] = []
    return operation


def _parameters(place: str, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": place, "required": name in required, **_parameter(field)}
        for name, field in schema["properties"].items()
    ]


def _parameter(field: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(field)
    description = schema.pop("description", None)
    return {"schema": schema} if description is None else {"description": description, "schema": schema}


def _responses(
    route: Route, schemas: Mapping[Any, dict[str, Any]], has_parameters: bool
) -> dict[str, dict[str, Any]]:
    responses = {str(route.status): _success(route, schemas)}
    for status, kind in route.also.items():
        responses[str(status)] = {"description": _first_line(kind), **_content(schemas[kind])}
    for status, errors in _by_status(_errors(route, has_parameters)).items():
        description = "; ".join(f"{error.__name__}: {_first_line(error)}" for error in errors)
        responses[str(status)] = {"description": description, **_content(schemas[route.error_body])}
    return responses


def _success(route: Route, schemas: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    if route.answer is not None:
        streamed: dict[str, dict[str, Any]] = {} if route.media == _JSON else {route.media: {}}
        content = {**_content(schemas[route.answer])["content"], **streamed}
        return {"description": _first_line(route.answer), "content": content}
    if route.status == 204:
        return {"description": "Done."}
    if route.status == 101:
        return {"description": "The connection is a websocket."}
    return {"description": route.summary, "content": {route.media: {}}}


def _content(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {"content": {_JSON: {"schema": dict(schema)}}}


def _errors(route: Route, has_parameters: bool) -> list[type[TrunklineError]]:
    errors = list(route.errors)
    has_body = route.signature.body is not None or route.takes is not None
    if has_parameters or has_body:
        errors.append(InvalidRequestError)
    if has_body:
        errors += [TooLargeError, SlowRequestError]
    if not route.open:
        errors += [UnauthorizedError, TooManyRequestsError]
        errors += [ConfirmIdentityError] if route.needs_proof else []
        errors += [] if route.role == "viewer" or ForbiddenError in errors else [ForbiddenError]
    return errors


def _by_status(errors: Iterable[type[TrunklineError]]) -> dict[int, list[type[TrunklineError]]]:
    found: dict[int, list[type[TrunklineError]]] = {}
    for error in errors:
        found.setdefault(error.status, []).append(error)
    return dict(sorted(found.items()))


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).split("\n")[0].replace("``", "`")
