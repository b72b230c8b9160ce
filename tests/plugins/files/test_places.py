"""Confinement: no path and no link leads out of the roots, whatever happens during a call."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway import ToolError
from gateway.api import FOLDER, beneath, open_below
from plugins.files.changes import Change, Changes
from plugins.files.content import read_file
from plugins.files.places import Places
from plugins.files.search import Walk, list_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2
SECRET = b"the secret outside\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(SECRET)
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder/secret").write_bytes(b"inside\n")
    return root


@pytest.fixture(params=["openat2", "stepwise"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to open a path: with openat2, and without it as on other systems."""
    if request.param == "openat2" and not beneath._has_openat2():
        pytest.skip("this kernel has no openat2")
    kept = beneath._has_openat2
    if request.param == "stepwise":
        beneath._has_openat2 = lambda: False  # type: ignore[assignment]
    try:
        yield request.param
    finally:
        beneath._has_openat2 = kept


def test_a_path_is_made_normal_by_its_text(root: Path) -> None:
    found = Places((root,)).find
    for text, shown in {
        "a": "a",
        "./a//b/../c": "a/c",
        "": ".",
        "folder/..": ".",
        str(root): ".",
        f"{root}/folder/": "folder",
        f"//{root}/a": "a",
        f"/..{root}/a": "a",
    }.items():
        place = found(text)
        assert (place.shown, place.outside) == (shown, False), text
    for text, path in {
        "..": str(root.parent),
        "../outside/secret": str(root.parent / "outside/secret"),
        f"{root}x": f"{root}x",
        "a/../../outside": str(root.parent / "outside"),
        "/": "/",
        "/etc/hosts": "/etc/hosts",
    }.items():
        place = found(text)
        assert (place.shown, place.path, place.outside) == (path, path, True), text


def test_of_nested_roots_the_inner_one_counts(root: Path) -> None:
    place = Places((root, root / "folder")).find("folder/secret")
    assert (place.base, place.parts) == (root / "folder", ("secret",))


@pytest.mark.parametrize("link", ["../outside", "/", "folder", "link", "/proc/self/root", "missing"])
def test_no_part_of_a_path_may_be_a_link(root: Path, way: str, link: str) -> None:
    (root / "link").symlink_to(link)
    found = Places((root,)).find
    for path in ("link/secret", "link/deeper/secret"):
        with pytest.raises(ToolError, match=r"link is a link to .*; links are not followed"):
            read_file(found(path), 1000)
    with pytest.raises(ToolError, match="link"):
        read_file(found("link"), 1000)
    with pytest.raises(ToolError, match="link is a link to"):
        list_folder(found("link"), Places((root,)))
    change = Change(found("link/new"), None, b"x")
    with pytest.raises(ToolError, match="link"):
        Changes(1000).apply([change])
    names = [entry.place.shown for entry in Walk(Places((root,)), bool).files(found("."))]
    assert names == ["folder/secret"]
    assert not (root.parent / "outside/new").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_by_no_write(root: Path, way: str) -> None:
    (root / "link").symlink_to("../outside/secret")
    before = read_file(Places((root,)).find("folder/secret"), 1000)
    change = Change(Places((root,)).find("link"), before, b"x")
    with pytest.raises(ToolError, match="a link"):
        Changes(1000).apply([change])
    with pytest.raises(ToolError, match="exists by now"):
        Changes(1000).apply([Change(Places((root,)).find("link"), None, b"x")])
    assert (root.parent / "outside/secret").read_bytes() == SECRET


def test_dots_reach_nothing_outside_even_below_the_text(root: Path, way: str) -> None:
    base = os.open(root, FOLDER)
    try:
        if way == "openat2":
            with pytest.raises(OSError, match=r"(?i)cross-device"):
                open_below(base, ("..", "outside"), FOLDER)
            with pytest.raises(OSError, match=r"(?i)cross-device"):
                open_below(base, ("", "etc"), FOLDER)
        os.close(open_below(base, ("folder",), FOLDER))
    finally:
        os.close(base)


@contextmanager
def swapping(root: Path) -> Iterator[None]:
    """Replace the folder by a link to the outside and back, again and again, in another thread."""
    stop = threading.Event()
    (root / "link").symlink_to("../outside")

    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    names = [ctypes.c_char_p(os.fsencode(root / name)) for name in ("folder", "link")]

    def swap() -> None:
        while not stop.is_set():
            assert exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if (root / "folder").is_symlink():
            assert exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def attempts(work: Callable[[], bytes]) -> tuple[int, int]:
    """Repeat some work. Return how often it succeeded and how often it was refused."""
    done = refused = 0
    # On a busy machine the thread that swaps may run first for long.
    while done + refused < 1_000 or (done == 0 and refused < 200_000):
        try:
            assert work() != SECRET
            done += 1
        except ToolError:
            refused += 1
    return done, refused


def test_a_link_that_is_swapped_in_during_a_read_is_never_followed(root: Path, way: str) -> None:
    place = Places((root,)).find("folder/secret")
    with swapping(root):
        done, refused = attempts(lambda: read_file(place, 1000).data)
    assert done + refused >= 1_000
    assert done > 0


def test_a_link_that_is_swapped_in_during_a_write_changes_nothing_outside(root: Path, way: str) -> None:
    places_, changes = Places((root,)), Changes(1000)
    number = iter(range(10_000))

    def write() -> bytes:
        name = f"folder/new-{next(number)}"
        changes.apply([Change(places_.find(name), None, b"x")])
        return b""

    with swapping(root):
        done, _ = attempts(write)
    assert done > 0
    assert names_in(root.parent / "outside") == ["secret"]
    assert not [name for name in names_in(root / "folder") if name.startswith(".trunkline")]


def test_a_search_during_the_swap_sees_nothing_outside(root: Path, way: str) -> None:
    found = Places((root,))

    def walk() -> bytes:
        for entry in Walk(found, bool).files(found.find(".")):
            descriptor = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=entry.descriptor)
            try:
                assert os.read(descriptor, 100) != SECRET
            finally:
                os.close(descriptor)
        return b""

    with swapping(root):
        done, _ = attempts(walk)
    assert done > 0


def test_no_descriptor_is_left_open(root: Path, way: str) -> None:
    found = Places((root,))
    (root / "link").symlink_to("folder")

    def use() -> None:
        for path in ("folder/secret", "missing/a", "link/secret", "folder", "folder/secret/deeper"):
            try:
                read_file(found.find(path), 1000)
            except ToolError:
                continue
        [*Walk(found, bool).files(found.find("."))]
        next(Walk(found, bool).files(found.find(".")))
        list_folder(found.find("."), found)

    use()
    before = len(names_in(Path("/proc/self/fd")))
    use()
    assert len(names_in(Path("/proc/self/fd"))) == before
