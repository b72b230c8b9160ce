"""Git, run by arguments, without code of a repository and without settings of the user.

A repository can name programs in its settings: hooks, monitors, filters, ssh and diff drivers. All of them
are switched off here, and so are all transports; a caller that needs one allows it for its command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from plugins.programs.process import Launch, Output, OutputLimitError, capture_output

GIT_SECONDS = 5.0
"""The time limit of a git command, unless the caller gives another one."""
SAFE_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.sshCommand=false",
    "core.untrackedCache=false",
    "core.quotePath=false",
    "credential.helper=",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "log.showSignature=false",
    "submodule.recurse=false",
)
DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color")
"""Options with which ``git diff`` runs no program."""

Wrap = Callable[[Sequence[str], Mapping[str, str]], Awaitable[Sequence[str]]]
"""Returns the arguments of a program, with those of one that confines it before them."""

_FILTER_KEYS = r"^filter\..*\.(clean|smudge|process|required)$"
_REASON_LETTERS = 300


class GitError(Exception):
    """A git command that failed. ``command`` is its name, ``code`` its exit status, or None without one."""

    def __init__(self, command: str, reason: str, code: int | None = None) -> None:
        super().__init__(f"git {command}: {reason}")
        self.command = command
        self.reason = reason
        self.code = code


class Git:
    """The program ``git`` with a safe environment. ``home`` is an existing folder that git may look into."""

    def __init__(self, program: str, environ: Mapping[str, str], home: Path) -> None:
        self._program = program
        self._env = {
            "PATH": environ.get("PATH", ""),
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_ATTR_NOSYSTEM": "1",
        }

    async def capture(
        self,
        *arguments: str,
        folder: str,
        env: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        seconds: float = GIT_SECONDS,
        most: int | None = None,
        wrap: Wrap | None = None,
    ) -> Output:
        """Run a command in a folder, with more variables and settings. Return its output and status.

        With ``most`` the output is cut after that many bytes. ``wrap`` confines git. Raises GitError if git
        cannot run, takes too long, or writes too much.
        """
        options = [part for setting in (*SAFE_SETTINGS, *settings) for part in ("-c", setting)]
        argv: Sequence[str] = [self._program, "--no-pager", *options, *arguments]
        variables = {**self._env, **(env or {})}
        if wrap is not None:
            argv = await wrap(argv, variables)
        launch = Launch(argv, variables, folder)
        try:
            if most is None:
                return await capture_output(launch, seconds)
            return await capture_output(launch, seconds, most)
        except TimeoutError:
            raise GitError(arguments[0], f"took longer than {seconds:g} s") from None
        except (OSError, OutputLimitError) as error:
            raise GitError(arguments[0], str(error)) from None

    async def run(
        self,
        *arguments: str,
        folder: str,
        env: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        seconds: float = GIT_SECONDS,
        wrap: Wrap | None = None,
        errors: str = "replace",
    ) -> str:
        """Run a command to its end and return its output without the last line ends. Raises GitError.

        ``errors`` is for bytes that are not UTF-8, as in ``bytes.decode``.
        """
        output = await self.capture(
            *arguments, folder=folder, env=env, settings=settings, seconds=seconds, wrap=wrap
        )
        if output.code != 0:
            reason = "; ".join(output.errors)[-_REASON_LETTERS:]
            raise GitError(arguments[0], reason or f"exit status {output.code}", output.code)
        return output.data.decode(errors=errors).rstrip("\n")

    async def filters_off(self, folder: str, env: Mapping[str, str] | None = None) -> Sequence[str]:
        """Return settings that switch off the filters which the settings of a repository define."""
        try:
            found = await self.run(
                *("config", "--includes", "--name-only", "--get-regexp", _FILTER_KEYS), folder=folder, env=env
            )
        except GitError:  # there are none
            return ()
        keys = found.splitlines()
        return [f"{key}={'false' if key.endswith('required') else ''}" for key in keys]

    async def stage_all(
        self,
        *,
        folder: str,
        env: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        seconds: float = GIT_SECONDS,
        wrap: Wrap | None = None,
    ) -> None:
        """Add all files of a work tree, whose root ``folder`` is, but look into no repository within it.

        ``git add`` runs git in each of those that the index has, and so the programs that its settings name.
        Their entries stay as they are, and other repositories are left out. ``wrap`` confines the command
        that reads the files. Raises GitError.
        """
        run = partial(self.run, folder=folder, env=env, settings=settings, seconds=seconds)
        before = await _gitlinks(run)
        await _drop(run, list(before))
        await run("add", "--all", "--ignore-errors", ".", wrap=wrap)
        await _drop(run, list(await _gitlinks(run)))
        for path, commit in before.items():
            # Files may be there now instead.
            if not await run("--literal-pathspecs", "ls-files", "-z", "--", path):
                await run("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")


async def _gitlinks(run: Callable[..., Awaitable[str]]) -> dict[str, str]:
    """Return the repositories that the index has, by path, each with its commit."""
    # The paths become arguments again: the same bytes, also those that are not UTF-8.
    listed = await run("ls-files", "--stage", "-z", errors="surrogateescape")
    entries = [entry.partition("\t") for entry in listed.split("\0")]
    return {path: entry.split(" ")[1] for entry, _, path in entries if entry.startswith("160000 ")}


async def _drop(run: Callable[..., Awaitable[str]], paths: Sequence[str]) -> None:
    """Remove entries from the index."""
    for at in range(0, len(paths), 100):
        await run("update-index", "--force-remove", "--", *paths[at : at + 100])
