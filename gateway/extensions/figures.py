"""The metrics of plugins, collected with a time limit and checked, for ``/metrics``.

In: ``Plugin.figures()``. Out: the figures of each plugin that answered in time, under their full names.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import structs

from gateway.contract.errors import CATCHABLE, PluginError, is_cancellation_requested
from gateway.contract.plugin import Figure, Plugin
from gateway.extensions.deadlines import Limit

log = structlog.get_logger("trunkline.registry")

_MOST_FIGURES = 1_000
"""Figures of one plugin: each is a time series that Prometheus keeps."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_LABEL = re.compile(r"[a-z][a-z0-9_]*")


async def collect_figures(
    plugins: Iterable[tuple[Plugin, Limit]],
) -> tuple[Mapping[str, Sequence[Figure]], Sequence[str]]:
    """Return figures by full name, and the plugins that failed.

    All plugins are asked at once. One that fails, is too slow or returns a wrong figure is logged and left
    out as a whole; so is one whose names another plugin has taken.
    """
    asked = tuple(plugins)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_figures_of(plugin, limit)) for plugin, limit in asked]
    found: dict[str, list[Figure]] = {}
    failed: list[str] = []
    for (plugin, _), task in zip(asked, running, strict=True):
        figures = task.result()
        clash = None if figures is None else next((name for name in figures if name in found), None)
        if clash is not None:
            log.error("left out the metrics of a plugin: another plugin has the name", name=clash)
        if figures is None or clash is not None:
            failed.append(plugin.name)
        else:
            found |= figures
    return found, failed


async def _figures_of(plugin: Plugin, limit: Limit) -> dict[str, list[Figure]] | None:
    """Return a plugin's figures by full name; None if it failed."""
    try:
        return _checked(plugin.name, await limit.call(plugin.figures))
    except CATCHABLE as error:
        if is_cancellation_requested(error):
            raise
        log.exception("left out the metrics of a plugin", plugin=plugin.name, reason=str(error))
        return None


def _checked(plugin: str, figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Return figures by their full names. Raises PluginError with the name and the fix."""
    if len(figures) > _MOST_FIGURES:
        raise PluginError(f"{len(figures)} figures are more than {_MOST_FIGURES}; use fewer label values")
    prefix = f"trunkline_plugin_{re.sub(r'[^a-z0-9_]', '_', plugin.lower())}"
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        _check(figure)
        same = found.setdefault(f"{prefix}_{figure.name.removesuffix('_total')}", [])
        first = same[0] if same else figure
        if (first.kind, sorted(first.labels)) != (figure.kind, sorted(figure.labels)):
            raise PluginError(f"figure {figure.name!r} has two kinds or sets of labels; use one of each")
        if any(figure.labels == other.labels for other in same):
            raise PluginError(f"figure {figure.name!r} comes twice with {dict(figure.labels)}; add a label")
        same.append(structs.replace(figure, labels=dict(sorted(figure.labels.items()))))
    return found


def _check(figure: Any) -> None:
    if not isinstance(figure, Figure):
        raise PluginError(f"{figure!r} is not a Figure")
    if not _NAME.fullmatch(figure.name):
        raise PluginError(f"figure {figure.name!r}: use a name of lower-case letters, digits and _")
    if figure.kind not in ("gauge", "counter"):
        raise PluginError(f"figure {figure.name!r}: kind is {figure.kind!r}; use gauge or counter")
    value: Any = figure.value
    if not isinstance(value, int | float) or math.isnan(value):
        raise PluginError(f"figure {figure.name!r}: the value {figure.value!r} is not a number")
    if figure.kind == "counter" and figure.value < 0:
        raise PluginError(f"figure {figure.name!r}: a counter cannot be {figure.value}; use a gauge")
    labels: Mapping[Any, Any] = figure.labels
    for label, text in labels.items():
        if not _LABEL.fullmatch(str(label)) or label == "le" or not isinstance(text, str):
            raise PluginError(
                f"figure {figure.name!r}: label {label!r} with {text!r}; use a lower-case name and a text"
            )
