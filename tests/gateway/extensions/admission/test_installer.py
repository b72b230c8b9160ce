"""Installation from every source, and packages that must not be installed."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway import PluginError
from gateway.extensions.admission.consent import chosen, describe
from gateway.extensions.admission.lock import Granted, granted
from gateway.extensions.admission.packages.archive import Quota, unpack_wheel
from gateway.extensions.admission.packages.dependencies import parse_requirements
from gateway.extensions.admission.packages.installer import Installer

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = pytest.mark.slow

MANIFEST = "name: audit\nversion: 1.0\n"
PLUGIN = {
    "trunkline_plugin_audit/__init__.py": "",
    "trunkline_plugin_audit/plugin.yml": MANIFEST,
    "trunkline_plugin_audit/main.py": "",
}
ROOT = Path(__file__).parents[4]


def refusal(desk: Desk, source: str | Path) -> str:
    with pytest.raises(PluginError) as caught:
        desk.install(source)
    assert desk.left() == [], "a failed installation leaves no files"
    assert desk.admission.lock().plugins == {}
    return str(caught.value)


def test_a_folder_is_copied_with_normal_modes_and_approved(desk: Desk) -> None:
    source = desk.plugin(desk.cwd / "source")
    (source / "main.py").chmod(0o600)
    (source / ".git").mkdir()
    (source / ".git/config").touch()
    (source / "__pycache__").mkdir()
    (source / "__pycache__/main.pyc").touch()
    desk.install(source)
    admitted = desk.admission.admit("audit")
    assert sorted(path.name for path in admitted.folder.iterdir()) == ["main.py", "plugin.yml"]
    assert stat.S_IMODE((admitted.folder / "main.py").stat().st_mode) == 0o644
    assert admitted.folder.is_relative_to(desk.data / "plugins/audit")
    assert admitted.source == str(source)
    assert not [name for name in desk.left() if name.startswith(".")]


def test_a_scoped_plugin_has_one_folder(desk: Desk) -> None:
    desk.install(desk.plugin(desk.cwd / "source", name='"@scope/audit"'))
    assert desk.admission.admit("@scope/audit").folder.parent.name == "@scope+audit"


def test_001_31_a_wheel_with_a_manifest_in_its_package_is_installed(desk: Desk) -> None:
    desk.install(desk.wheel({**PLUGIN, "trunkline_plugin_audit-1.0.data/scripts/run": "#!"}))
    admitted = desk.admission.admit("audit")
    assert admitted.site == admitted.folder / "site"
    assert (admitted.site / "trunkline_plugin_audit/__init__.py").is_file()
    assert not list(admitted.folder.rglob("run"))


def index(desk: Desk) -> dict[str, str]:
    """An index with the plugin and a package that it needs."""
    wheels = desk.cwd / "wheels"
    desk.wheel(PLUGIN, requires="Requires-Dist: helper==1.0\n", folder=wheels)
    desk.wheel({"helper/__init__.py": "raise SystemExit('run')"}, package="helper", folder=wheels)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return environ | {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "HOME": str(desk.home),
    }


def in_process(desk: Desk, code: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code with an installer; pip takes its settings from the environment of the process."""
    prelude = (
        "import os\nfrom pathlib import Path\nfrom gateway.settings import load_settings\n"
        "from gateway.extensions.admission.admission import Admission\n"
        "from gateway.extensions.admission.packages.installer import Installer\n"
        "admission = Admission(load_settings(), home=Path(os.environ['HOME']))\n"
        "installer = Installer(admission, {})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=desk.cwd,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


INSTALL = (
    "with installer.prepare('trunkline-plugin-audit') as prepared:\n"
    "    installer.place(prepared, (), 'operator')\n"
)
MISSING = "admission.install_missing(['audit', 'other'], {})\nprint(admission.admit('audit').digest)\n"


def test_004_t20_a_locked_plugin_that_is_missing_is_installed_from_the_lock(desk: Desk) -> None:
    environ = index(desk)
    done = in_process(desk, INSTALL, environ)
    assert done.returncode == 0, done.stderr
    locked = desk.admission.lock().get("audit")
    assert locked is not None
    assert locked.source == "trunkline-plugin-audit==1.0"
    assert [wheel.file for wheel in locked.wheels] == [
        "helper-1.0-py3-none-any.whl",
        "trunkline_plugin_audit-1.0-py3-none-any.whl",
    ]
    assert (desk.admission.admit("audit").folder / "site/helper/__init__.py").is_file()
    shutil.rmtree(desk.data / "plugins")
    with pytest.raises(PluginError, match="is not installed"):
        desk.admission.admit("audit")
    done = in_process(desk, MISSING, environ)
    assert done.stdout.strip() == locked.digest, done.stderr
    assert desk.admission.admit("audit").digest == locked.digest


def test_004_t20_other_packages_than_the_locked_ones_are_not_installed(desk: Desk) -> None:
    environ = index(desk)
    assert in_process(desk, INSTALL, environ).returncode == 0
    shutil.rmtree(desk.data / "plugins")
    desk.wheel({"helper/__init__.py": "evil"}, package="helper", folder=desk.cwd / "wheels")
    done = in_process(desk, MISSING, environ)
    assert "DO NOT MATCH" in done.stderr.upper() or "pip download failed" in done.stderr
    assert desk.left() == []


def test_a_missing_plugin_without_a_lock_is_not_installed(desk: Desk) -> None:
    source = desk.plugin(desk.cwd / "source")
    desk.admission.install_missing(["audit", str(source)], {})
    assert desk.left() == []


def test_a_folder_that_changed_is_not_installed_from_the_lock(desk: Desk) -> None:
    source = desk.plugin(desk.cwd / "source")
    desk.install(source)
    shutil.rmtree(desk.data / "plugins")
    (source / "main.py").write_text("changed")
    admission = desk.admission
    admission.install_missing(["audit"], {})
    with pytest.raises(PluginError, match="differs from the approved one"):
        admission.admit("audit")


def test_an_update_keeps_the_grants_that_are_still_declared(desk: Desk) -> None:
    source = desk.plugin(desk.cwd / "source", more="capabilities: {send: true, llm: {enabled: true}}")
    installer = desk.installer
    with installer.prepare(str(source)) as prepared:
        installer.place(prepared, granted(("send", "llm"), "operator"), "operator")
    first = desk.admission.admit("audit").folder
    desk.plugin(source, version="2.0", more="capabilities: {send: true, docker: true}")
    installer = desk.installer
    with installer.prepare(str(source)) as prepared:
        assert prepared.before is not None
        installer.place(prepared, prepared.kept, "operator")
    admitted = desk.admission.admit("audit")
    assert (admitted.manifest.version, admitted.grants) == ("2.0", {"send"})
    assert first.is_dir(), "a running gateway may still use it"


ATTACKS = {
    "zip slip": ({"../evil.py": ""}, "leads out of the folder"),
    "absolute": ({"/tmp/evil.py": ""}, "leads out of the folder"),
    "inside": ({"a/../../evil.py": ""}, "leads out of the folder"),
    "backslash": ({"..\\evil.py": ""}, "leads out of the folder"),
    "data": ({"x-1.0.data/purelib/../../../evil.py": ""}, "leads out of the folder"),
    "pth": ({"evil.pth": "import os"}, "run at the start of an interpreter"),
    "pth as data": ({"x-1.0.data/purelib/evil.pth": "import os"}, "run at the start of an interpreter"),
    "sitecustomize": ({"sitecustomize.py": ""}, "run at the start of an interpreter"),
    "bomb": ({"zeros": b"\0" * 50_000_000}, "compressed more than 100 times"),
    "files": ({f"f{n}": "" for n in range(5_001)}, "more than 5000 files"),
    "compiled": ({"trunkline_plugin_audit/main.pyc": ""}, "compiled code"),
    "two manifests": ({"other/plugin.yml": ""}, "has 2 files plugin.yml"),
    "own site": ({"trunkline_plugin_audit/site/x.py": ""}, "is for dependencies"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_wheel_that_is_not_safe_leaves_no_files(desk: Desk, attack: str) -> None:
    files, told = ATTACKS[attack]
    assert told in refusal(desk, desk.wheel({**PLUGIN, **files}))
    assert not list(desk.cwd.parent.rglob("evil*"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_of_a_wheel_are_refused(desk: Desk, kind: int) -> None:
    wheel = desk.wheel(PLUGIN)
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("trunkline_plugin_audit/link")
        entry.external_attr = (kind | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    assert "is a link or a device" in refusal(desk, wheel)


def test_the_room_is_shared_by_all_packages(desk: Desk, tmp_path: Path) -> None:
    quota = Quota(files=10, size=10_000)
    unpack_wheel(desk.wheel({"a/x.py": "x"}, package="a"), tmp_path / "a", quota)
    with pytest.raises(PluginError, match="more than 5000 files"):
        unpack_wheel(desk.wheel({f"b/{n}.py": "x" for n in range(9)}, package="b"), tmp_path / "b", quota)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("./plugin.tar.gz", "source distribution"),
        ("./plugin.zip", "source distribution"),
        ("./none", "neither a folder nor a wheel"),
        ("-r", "is not a source"),
        ("audit @ https://example.org/x.whl", "neither a folder nor a wheel"),
        ("audit[extra]", "is not a source"),
        ("git+http://example.org/x@main", "must be git+https://"),
        ("git+ssh://git@example.org/x@main", "must be git+https://"),
        ("git+https://user:pass@example.org/x@main", "must be git+https://"),
        ("git+https://example.org/x", "must be git+https://"),
        ("git+https://example.org/x@--upload-pack=evil", "must be git+https://"),
        ("git+file:///tmp/x@main", "must be git+https://"),
    ],
)
def test_other_sources_are_refused(desk: Desk, source: str, told: str) -> None:
    (desk.cwd / "plugin.tar.gz").touch()
    assert told in refusal(desk, source)


@pytest.mark.parametrize("name", ["evil.pth", "link", "sitecustomize.py"])
def test_a_folder_that_is_not_safe_is_refused(desk: Desk, name: str) -> None:
    source = desk.plugin(desk.cwd / "source")
    if name == "link":
        (source / name).symlink_to("/etc/passwd")
    else:
        (source / name).touch()
    refusal(desk, source)


@pytest.mark.parametrize(
    "line", ["--index-url https://evil", "helper @ https://evil/x.whl", "-e .", "./x.whl", "git+https://x/y"]
)
def test_requirements_name_only_packages_of_the_index(line: str) -> None:
    with pytest.raises(PluginError, match="requirements"):
        parse_requirements(f"{line}\n")


def test_requirements_have_hashes_by_name() -> None:
    found, hashes = parse_requirements(
        "a==1 \\\n  --hash=sha256:00\nb>2  # more\n\nc; sys_platform == 'none'\n"
    )
    assert ([str(each) for each in found], hashes) == (["a==1", "b>2"], {"a": ["00"], "b": [], "c": []})


@pytest.mark.parametrize("place", ["requirements", "wheel", "dependency"])
def test_a_dependency_with_an_address_runs_no_code(desk: Desk, place: str) -> None:
    marker = desk.cwd / "marker"
    evil = desk.cwd / "evil-1.0"
    evil.mkdir()
    (evil / "setup.py").write_text(f"open({str(marker)!r}, 'w')")
    requires = f"Requires-Dist: evil @ {evil.as_uri()}\n"
    environ = index(desk)
    if place == "requirements":
        source = desk.plugin(desk.cwd / "source")
        (source / "requirements.txt").write_text(f"# pip ends this comment \\\n--find-links {evil}\n")
    elif place == "wheel":
        source = desk.wheel(PLUGIN, requires=requires)
    else:
        source = Path("trunkline-plugin-audit")
        desk.wheel({"helper/x.py": ""}, package="helper", folder=desk.cwd / "wheels", requires=requires)
    done = in_process(desk, INSTALL.replace("'trunkline-plugin-audit'", repr(str(source))), environ)
    assert not marker.exists()
    if place == "requirements":
        assert done.returncode == 0, done.stderr
        assert desk.admission.lock().get("audit").wheels == ()
    else:
        assert "evil has an address; only the index is used" in done.stderr
        assert desk.left() == []


def test_versions_are_chosen_that_fit_together(desk: Desk) -> None:
    environ = index(desk)
    wheels = desk.cwd / "wheels"
    old = desk.wheel({"helper/x.py": ""}, package="helper", folder=wheels)
    new = wheels / "helper-2.0-py3-none-any.whl"
    shutil.copy(old, new)
    with zipfile.ZipFile(old) as first, zipfile.ZipFile(new, "w") as second:
        for entry in first.infolist():
            text = first.read(entry).decode().replace("\nVersion: 1.0", "\nVersion: 2.0")
            second.writestr(entry.filename.replace("helper-1.0", "helper-2.0"), text)
    desk.wheel({"other/x.py": ""}, package="other", folder=wheels, requires="Requires-Dist: helper<2\n")
    source = desk.plugin(desk.cwd / "source")
    (source / "requirements.txt").write_text("helper\nother\n")
    done = in_process(desk, INSTALL.replace("'trunkline-plugin-audit'", repr(str(source))), environ)
    assert done.returncode == 0, done.stderr
    assert [wheel.file for wheel in desk.admission.lock().get("audit").wheels] == [
        "helper-1.0-py3-none-any.whl",
        "other-1.0-py3-none-any.whl",
    ]
    assert sorted(path.name for path in desk.admission.admit("audit").site.iterdir())[0] == "helper"
    (source / "requirements.txt").write_text("helper>1\nother\n")
    done = in_process(desk, INSTALL.replace("'trunkline-plugin-audit'", repr(str(source))), environ)
    assert "pip download failed" in done.stderr


def test_a_killed_installation_leaves_files_only_until_the_next_one(desk: Desk) -> None:
    """One process is killed with its staging folder, another one between the files and the lock."""
    source = desk.plugin(desk.cwd / "source")
    environ = {**os.environ, "HOME": str(desk.home)}
    kill = "os.kill(os.getpid(), 9)\n"
    done = in_process(desk, f"with installer.prepare({str(source)!r}) as prepared:\n    {kill}", environ)
    assert done.returncode == -signal.SIGKILL
    assert any(name.startswith(".staging-") for name in desk.left())
    stopped = (
        f"def stop(*_): {kill}"
        "import gateway.extensions.admission.packages.installer as module\nmodule.editing = stop\n"
        f"with installer.prepare({str(source)!r}) as prepared:\n"
        "    installer.place(prepared, (), 'operator')\n"
    )
    assert in_process(desk, stopped, environ).returncode == -signal.SIGKILL
    assert any(name.startswith("audit") for name in desk.left())
    with pytest.raises(PluginError):
        desk.install("./none")
    assert desk.left() == []


def test_two_installations_at_once_do_not_disturb_each_other(desk: Desk) -> None:
    source = desk.plugin(desk.cwd / "source")
    with (
        desk.installer.prepare(str(source)),
        pytest.raises(PluginError, match="another installation is running"),
    ):
        desk.install(source)


def test_a_plugin_that_the_team_refuses_is_not_installed(desk: Desk) -> None:
    desk.set('teams.plugins.blocklist = ["audit"]')
    assert "is in teams.plugins.blocklist" in refusal(desk, desk.plugin(desk.cwd / "source"))


def test_a_removed_plugin_leaves_no_files_approval_or_secret(desk: Desk) -> None:
    desk.install(desk.plugin(desk.cwd / "source"))
    assert desk.installer.remove("audit", purge=True)
    assert desk.left() == []
    assert desk.admission.lock().plugins == {}
    assert not desk.installer.remove("audit", purge=True)


def test_consent_names_hosts_folders_and_data(desk: Desk) -> None:
    desk.project(
        more="events: [chat.message]\ncapabilities:\n"
        "  filesystem: {read: true, write: true, roots: [workspace, /srv], restricted: ['.env']}\n"
        "  network: {enabled: true, allowlist: [api.example.org], methods: [GET, POST]}\n"
        "  exec: {enabled: true, allowlist: [npx prettier *]}\n  llm: {enabled: true, budget: 5.0}\n"
        "  send: true\n  storage_mb: 3\n  schedule: true\n  routes: public\n  docker: true\n  tools: decide\n"
    )
    manifest = desk.admission.find("audit").manifest
    assert describe(manifest)[:6] == [
        "read files in the working directory, except .env",
        "read files below /srv, except .env",
        "write files in the working directory, except .env",
        "write files below /srv, except .env",
        "connect to api.example.org (GET, POST)",
        "run the command npx prettier *",
    ]
    assert len(describe(manifest)) == len([*manifest.capabilities.grants()])
    assert chosen(manifest, ["filesystem.read", "network:api.example.org", "send"]) == (
        "filesystem.read:workspace",
        "filesystem.read:/srv",
        "network:api.example.org",
        "send",
    )
    with pytest.raises(PluginError, match="--allow net: plugin 'audit' does not declare this"):
        chosen(manifest, ["net"])


class Repository:
    """A git repository that is served over https; ``url`` is its address, ``ca`` the certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder.parent / "ca.pem"
        self.url = ""
        self.git("init", "--quiet", "--initial-branch=main", str(folder))

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
        argv = ["git", "-C", str(self.folder if self.folder.exists() else self.folder.parent), *identity]
        return subprocess.run([*argv, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a commit")
        return self.git("rev-parse", "HEAD")

    def certify(self) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        self.ca.write_bytes(certificate.public_bytes(pem))
        secret = self.ca.with_name("key.pem")
        secret.write_bytes(key.private_bytes(pem, form, plain))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, secret)
        return context


@contextmanager
def served(repository: Repository) -> Iterator[Repository]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            environ = {
                "PATH": os.defpath,
                "GIT_PROJECT_ROOT": str(repository.folder.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "REMOTE_ADDR": "127.0.0.1",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=environ, capture_output=True, check=False
            )
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    context = repository.certify()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        repository.url = f"https://localhost:{server.server_address[1]}/{repository.folder.name}/.git"
        try:
            yield repository
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def repository(desk: Desk) -> Iterator[Repository]:
    folder = desk.cwd.parent / "repository"
    with served(Repository(folder)) as repository:
        desk.plugin(folder)
        yield repository


def from_git(desk: Desk, repository: Repository, ref: str = "main") -> None:
    installer = Installer(desk.admission, {"GIT_SSL_CAINFO": str(repository.ca)})
    with installer.prepare(f"git+{repository.url}@{ref}") as prepared:
        installer.place(prepared, (Granted("send", "operator", ""),), "operator")


def test_a_repository_is_installed_and_its_commit_stored(desk: Desk, repository: Repository) -> None:
    (repository.folder / "run.sh").touch()
    (repository.folder / "run.sh").chmod(0o755)
    commit = repository.commit()
    from_git(desk, repository)
    locked = desk.admission.lock().get("audit")
    assert locked is not None
    assert locked.source == f"git+{repository.url}@{commit}"
    assert locked.requested == f"git+{repository.url}@main"
    folder = desk.admission.admit("audit").folder
    assert sorted(path.name for path in folder.iterdir()) == ["main.py", "plugin.yml", "run.sh"]
    shutil.rmtree(desk.data / "plugins")
    (repository.folder / "main.py").write_text("newer")
    repository.commit()
    admission = desk.admission
    admission.install_missing(["audit"], {"GIT_SSL_CAINFO": str(repository.ca)})
    assert admission.admit("audit").digest == locked.digest, "the stored commit, not the newest"


def test_hooks_filters_links_and_submodules_of_a_repository_have_no_effect(
    desk: Desk, repository: Repository
) -> None:
    marker = desk.cwd / "marker"
    (repository.folder / ".gitattributes").write_text("* filter=evil export-subst\n")
    (repository.folder / ".lfsconfig").write_text("[lfs]\nurl = file:///tmp\n")
    repository.commit()
    repository.git("config", "filter.evil.smudge", f"touch {marker}")
    from_git(desk, repository)
    assert not marker.exists()
    (repository.folder / "link").symlink_to("/etc/passwd")
    repository.commit()
    with pytest.raises(PluginError, match="link is a link or a submodule"):
        from_git(desk, repository)
    (repository.folder / "link").unlink()
    commit = repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    repository.git("commit", "--quiet", "--message", "a submodule")
    with pytest.raises(PluginError, match="sub is a link or a submodule"):
        from_git(desk, repository)
    assert not [name for name in desk.left() if name.startswith(".")]


def test_a_repository_behind_an_unknown_certificate_is_refused(desk: Desk, repository: Repository) -> None:
    repository.commit()
    with pytest.raises(PluginError, match="git fetch failed: fatal: "):
        desk.install(f"git+{repository.url}@main")
    assert desk.left() == []
