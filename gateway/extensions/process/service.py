"""Confined processes for the rest of the gateway: scripts that read what others wrote, and programs.

Nothing is started or imported before the first use. Where the kernel cannot confine, scripts keep the limits
of ``gateway.confinement``, and programs are refused, so that the caller decides.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog
from msgspec import structs

from gateway.confinement import Confinement, run_confined
from gateway.settings.layers.own_files import OwnFiles

if TYPE_CHECKING:
    from gateway.confinement.programs import ProgramAccess, ProgramPrefix, RunningProgram
    from gateway.extensions.process.launcher import Launcher
    from gateway.extensions.process.profile import Profile, ScriptTarget

log = structlog.get_logger("trunkline.processes")

_CHILD = Path(__file__).parent.parent / "child"
_MIB = 1024 * 1024
_TRANSIENT = ("start", "zygote")
"""Failures other than a missing layer; after one of them nothing may run with less confinement."""
_OPEN_FILES = 64
_PROGRAM_FILES = 4096
_PROGRAM_FILE_BYTES = 1 << 40


class Processes:
    """Starts confined processes. ``mode`` is that of a launcher which is made at its first use.

    ``own`` are the gateway's own files, which no program reads or changes below a folder that it was given.
    """

    def __init__(
        self,
        mode: Literal["strict", "standard"] = "standard",
        launcher: Launcher | None = None,
        own: OwnFiles = OwnFiles(),  # noqa: B008 - frozen
    ) -> None:
        self.own = own
        self._mode: Literal["strict", "standard"] = mode
        self._launcher = launcher
        self._unconfined = False

    @property
    def launcher(self) -> Launcher:
        """The launcher of this gateway."""
        if self._launcher is None:
            # At its first use, because a gateway that confines nothing shall not pay for it.
            from gateway.extensions.process.launcher import Launcher

            runtime = "trunkline_plugin.runtime"
            exists = (_CHILD / "trunkline_plugin" / "runtime.py").exists()
            self._launcher = Launcher(self._mode, preload=[(_CHILD, runtime)] if exists else [])
        return self._launcher

    def missing_layers(self) -> list[str]:
        """Return why nothing can be confined here, each reason with its remedy; [] if it is possible."""
        return self.launcher.missing_layers()

    async def close(self) -> None:
        """End all confined processes."""
        if self._launcher is not None:
            await self._launcher.close()

    async def run_script(
        self,
        python: str,
        script: Path,
        arguments: Sequence[str],
        data: bytes,
        limits: Confinement,
        output: bytearray,
    ) -> int | None:
        """Run a script as ``run_confined`` does, under the profile ``plugin`` if that is possible here.

        Scripts of another interpreter than the gateway's keep the limits of ``run_confined``.
        """
        from gateway.extensions.process.launcher import ConfinementError
        from gateway.extensions.process.scripts import run_script

        if not self._unconfined and python == sys.executable:
            profile, target = _script(script, arguments, limits)
            try:
                ended = await run_script(self.launcher, profile, target, data, limits.output, limits.seconds)
            except ConfinementError as error:
                if error.layer in _TRANSIENT:
                    raise OSError(str(error)) from None
                self._unconfined = True
                log.warning(
                    "documents and pages are read without confinement by the kernel", reason=str(error)
                )
            else:
                output += ended.output
                # The first process of a pid namespace gets SIGKILL in place of SIGXCPU.
                return None if ended.status == -signal.SIGKILL else ended.status
        return await run_confined(python, script, arguments, data, limits, output)

    async def start_program(
        self,
        argv: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        access: ProgramAccess,
        output: int,
        stdin: int | None = None,
    ) -> RunningProgram | None:
        """Start a program under the profile ``program``, with the descriptor ``output`` as stdout and stderr.

        With ``stdin`` the end of stderr is kept apart. None if that is impossible here. Raises
        ConfinementError if the program cannot be started.
        """
        from gateway.extensions.process import profile as profiles

        launcher = self.launcher
        if launcher.missing_layers():
            return None
        profile = protected(_program(argv, environ, access), self.own)
        target = profiles.ProgramTarget(
            tuple(argv),
            str(cwd),
            stdin=-1 if stdin is None else stdin,
            stdout=output,
            stderr=output if stdin is None else None,
        )
        return await launcher.spawn(profile, target)

    async def program_prefix(
        self, argv: Sequence[str], environ: Mapping[str, str], access: ProgramAccess
    ) -> ProgramPrefix:
        """Return a prefix for a program that outlives the gateway; see ``ProcessService``."""
        from gateway.extensions.process.standalone import program_prefix

        profile = _program(argv, environ, access, interactive=True)
        return await program_prefix(self.launcher, protected(profile, self.own))


def _script(script: Path, arguments: Sequence[str], limits: Confinement) -> tuple[Profile, ScriptTarget]:
    """Return profile and target of a script, which sees itself and the installed libraries."""
    from gateway.extensions.process import profile as profiles

    site = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    profile = profiles.plugin(
        [script, *site],
        profiles.ProcessLimits(limits.memory, _OPEN_FILES, 0, cpu_seconds=limits.cpu_seconds),
        threads=limits.threads,
    )
    return profile, profiles.ScriptTarget(str(script), tuple(arguments), tuple(site))


def _program(
    argv: Sequence[str], environ: Mapping[str, str], access: ProgramAccess, *, interactive: bool = False
) -> Profile:
    """Return the profile of a program. Raises ConfinementError if it could write to a closed folder."""
    from gateway.extensions.process import profile as profiles
    from gateway.extensions.process.launcher import ConfinementError

    closed = [os.path.realpath(path) for path in access.closed]
    for path in access.writable:
        if inside := next(profiles.closed_in(str(path), closed), None):
            raise ConfinementError(
                "access", f"{path} contains {inside}, which is closed to programs; choose a folder beside it"
            )
    paths = (argv[0], *access.programs, *environ.get("PATH", "").split(":"))
    limits = profiles.ProcessLimits(
        memory=access.memory_mb * _MIB,
        files=_PROGRAM_FILES,
        file_bytes=_PROGRAM_FILE_BYTES,
        processes=access.processes,
        cpu_seconds=access.cpu_seconds,
        cpus=access.cpus,
    )
    profile = profiles.program(
        profiles.program_mounts(paths, access.writable),
        limits,
        network=access.network,
        environ=environ,
        interactive=interactive,
    )
    readable = (profiles.Mount(str(path)) for path in access.readable)
    writable = (profiles.Mount(str(path), write=True) for path in access.writable)
    mounts = (
        *profiles.around(profile.mounts, closed),
        *profiles.around(readable, closed, named=True),
        *writable,
    )
    return structs.replace(profile, mounts=mounts)


def _links(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the symbolic links among paths and the folders above them."""
    for path in paths:
        yield from filter(os.path.islink, (path, *path.parents))


def protected(profile: Profile, own: OwnFiles) -> Profile:
    """Return a profile of a program that reads no closed file of the gateway, and changes no guarded one.

    Guarded folders that are missing in a writable folder are made, because the program could make them.
    Raises ConfinementError if the profile names a closed path, or if the program could replace a link.
    """
    from gateway.extensions.process import profile as profiles
    from gateway.extensions.process.launcher import ConfinementError

    real = {mount.path: os.path.realpath(mount.path) for mount in profile.mounts}
    writable = [real[mount.path] for mount in profile.mounts if mount.write]
    closed = [os.path.realpath(path) for path in own.closed]
    if named := next((path for path, target in real.items() if target in closed), None):
        raise ConfinementError("access", f"{named} belongs to the gateway; choose another folder")
    guarded = {path: os.path.realpath(path) for path in own.guarded}
    guarded = {path: target for path, target in guarded.items() if profiles.is_below(target, writable)}
    for link in _links((*own.closed, *own.guarded)):
        folder = os.path.realpath(link.parent)
        if profiles.is_below(folder, writable) and not profiles.is_below(folder, guarded.values()):
            raise ConfinementError(
                "access",
                f"the program could replace {link}, a link to files of the gateway; name its target in the "
                "settings, or choose a folder beside it",
            )
    try:
        for path in guarded:
            if not path.exists():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfinementError("access", f"a folder of the gateway cannot be made: {error}") from None
    return structs.replace(profile, closed=tuple(closed), guarded=tuple(guarded.values()))
