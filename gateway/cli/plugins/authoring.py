"""``trunkline plugin new | scan | pack``: for authors of plugins, and before an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import FAILED, AsJson, File
from gateway.cli.output import echo_json, plain
from gateway.cli.plugins.operator import Operator, one_line_errors
from gateway.contract.errors import PluginError
from gateway.extensions.admission.manifest import is_name, read_manifest
from gateway.extensions.admission.packages.pack import pack_folder
from gateway.extensions.admission.packages.scan import LIMITS, scan_folder

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with a plugin.yml.")]

_MANIFEST = """\
api: 1
name: {name}
version: 0.1.0
description: Describe what it does, in one sentence
author: you@example.org
license: MIT
events: [session.idle]                  # The gateway refuses a handler that is not listed here
commands: [{title}]                     # And a command
capabilities: {{}}                        # Nothing but its own folder, until it declares more and gets it
"""
_MAIN = '''\
"""The plugin {title}."""

from trunkline_plugin import plugin


@plugin
async def start(ctx):
    """Return what the plugin offers: handlers of events, tools, commands."""

    idle = 0

    async def on_idle(event):
        nonlocal idle
        idle += 1

    async def show(args, call):
        return f"{{idle}} turns have ended."

    return {{
        "on": {{"session.idle": on_idle}},
        "commands": [{{"name": "{title}", "description": "Show the number of turns", "execute": show}}],
    }}
'''
_TEST = '''\
"""Tests of the plugin {title}: `trunkline plugin test .`"""

from pathlib import Path

from gateway.testing.plugins import running


async def test_it_answers_its_command(tmp_path):
    async with running(Path(__file__).parent, tmp_path) as chat:
        assert (await chat.say("/{title}")).text.endswith("turns have ended.")
'''
_README = """\
# {title}

What it does, which capabilities it needs, and why.

```sh
trunkline plugin approve ./{title}
trunkline plugin enable ./{title}
```
"""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name, like audit-log or @scope/audit-log.")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Folder to create; default: the name.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a folder with a new plugin: manifest, code, test and README.

    \b
    Examples:
      trunkline plugin new audit-log
      trunkline plugin new @example/audit-log --folder plugins/audit-log
    """
    with one_line_errors():
        if not is_name(name):
            raise PluginError(f"{name!r} is not a name; write 3 to 64 of a-z, 0-9 and -, like audit-log")
        title = name.rpartition("/")[2]
        place = folder or Path(title)
        quoted = f'"{name}"'
        texts = {
            "plugin.yml": _MANIFEST.format(name=quoted if name.startswith("@") else name, title=title[:32]),
            "main.py": _MAIN.format(title=title[:32]),
            "test_plugin.py": _TEST.format(title=title[:32]),
            "README.md": _README.format(title=title),
        }
        try:
            place.mkdir(parents=True)
            for file, text in texts.items():
                (place / file).write_text(text, encoding="utf-8")
        except FileExistsError:
            raise PluginError(f"{place} exists already; choose another name or --folder") from None
        except OSError as error:
            raise PluginError(f"{place} cannot be written: {error.strerror}") from None
        read_manifest(place)
    if as_json:
        echo_json({"name": name, "folder": str(place), "files": sorted(texts)})
    else:
        typer.echo(
            f"{place} has {', '.join(texts)}; try it with `trunkline plugin dev {_path(place)}`, and use it "
            f"with `trunkline plugin approve {_path(place)}` and `trunkline plugin enable {_path(place)}`"
        )


def scan(
    target: Annotated[
        str, typer.Argument(metavar="NAME|FOLDER", help="Name of a plugin that is found, or a folder.")
    ],
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Search a plugin's code for undeclared access; exit with 1 if any is found.

    Finds use of sockets, processes and native code, hidden characters, secrets, and dependencies without
    hashes. Reads the files and runs nothing.

    \b
    Examples:
      trunkline plugin scan ./weather
      trunkline plugin scan weather --json
    """
    with one_line_errors():
        path = Path(target).expanduser()
        folder = path if path.is_dir() else Operator(config).admission.find(target).folder
        manifest, found = scan_folder(folder)
    if as_json:
        echo_json({"name": manifest.name, "version": manifest.version, "findings": found, "limits": LIMITS})
    else:
        for each in found:
            place = f"{each.file}:{each.line}" if each.line else each.file
            typer.echo(plain(f"{place}: {each.kind}: {each.text}"))
        typer.echo(f"{len(found)} findings in {manifest.name} {manifest.version}")
        typer.echo(LIMITS, err=True)
    if found:
        raise typer.Exit(FAILED)


def pack(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", help="Folder for the wheel.")] = Path("dist"),
    as_json: AsJson = False,
) -> None:
    """Pack a plugin's folder as a wheel; the same files always give the same bytes.

    \b
    Examples:
      trunkline plugin pack ./weather
      trunkline plugin pack ./weather --output /tmp --json
    """
    with one_line_errors():
        wheel = pack_folder(folder, output)
    if as_json:
        echo_json({"wheel": str(wheel), "bytes": wheel.stat().st_size})
    else:
        typer.echo(str(wheel))


def _path(place: Path) -> str:
    text = str(place)
    return text if "/" in text else f"./{text}"
