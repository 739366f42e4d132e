"""A Docker engine for `nox -s images`: the one that runs already, or one of our own that leaves nothing behind.

Debian 12's own engine cannot hold two architectures under one tag; the next release's can (Docker 26 with the
containerd image store). Three of its packages install on Debian 12, from a copy of the machine's own Debian source
with the release replaced: no mirror is named here, whichever one the machine uses serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("docker.io", "docker-cli", "docker-buildx")  # from NEXT; what they depend on comes from this release
HELPERS = ("iptables", "mmdebstrap", "arch-test", "qemu-user-static")
THIS, NEXT = "bookworm", "trixie"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# ELF header of an AArch64 program; F: the kernel opens the emulator now, so that containers need not hold it.
MAGIC = r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
BRIDGE = Path("/sys/class/net/docker0")  # an engine's network
EMULATOR = Path("/usr/bin/qemu-aarch64-static")


class NoEngineError(RuntimeError):
    """No engine runs and none can be started; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Engine:
    """`docker` is the client that has buildx; `url` where the engine listens; `multi`: one tag holds two platforms."""

    docker: str
    url: str
    multi: bool

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the client's commands."""
        return {**os.environ, "DOCKER_HOST": self.url, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def next_source(text: str) -> str:
    """The stanza of `text` for this release's main archive, for the next release. ValueError where there is none."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", stanza, re.MULTILINE))
        if THIS in fields.get("Suites", "").split() and "deb" in fields.get("Types", "").split():
            kept = {key: fields[key] for key in ("Types", "URIs", "Components", "Signed-By") if key in fields}
            return "".join(f"{key}: {value}\n" for key, value in {**kept, "Suites": NEXT}.items())
    raise ValueError(f"no stanza for {THIS} in the machine's Debian source")


def install() -> None:
    """Installs engine, emulator and mmdebstrap with apt, from sources in a temporary folder. Root only."""
    wanted = [p for p in (*PACKAGES, *HELPERS) if not _installed(p)]
    if not wanted:
        return
    if not SOURCES.exists():
        raise NoEngineError(f"no Docker engine runs here, and {SOURCES} is missing: start an engine")
    with tempfile.TemporaryDirectory(prefix="moelab-apt-") as folder:
        Path(folder).chmod(0o755)  # apt downloads as a user of its own
        parts = Path(folder) / "parts"
        shutil.copytree("/etc/apt/sources.list.d", parts)
        (parts / "moelab-next.sources").write_text(next_source(SOURCES.read_text()))
        rules = Path(folder) / "preferences"
        rules.write_text(
            f"Package: *\nPin: release n={NEXT}\nPin-Priority: -1\n\n"
            f"Package: {' '.join(PACKAGES)}\nPin: release n={NEXT}\nPin-Priority: 900\n"
        )
        # No service manager may start the packaged service: we start the engine ourselves, with our own settings.
        (Path(folder) / "lists" / "partial").mkdir(parents=True)
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        where = ["-o", f"Dir::Etc::sourceparts={parts}", "-o", f"Dir::Etc::preferences={rules}",
                 "-o", f"Dir::State::lists={folder}/lists", "-o", "DPkg::Lock::Timeout=300"]  # fmt: skip
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        try:
            for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", *wanted]):
                subprocess.run(["apt-get", *where, *command], check=True, env=env, stdout=subprocess.DEVNULL)
        finally:
            if ours:
                policy.unlink()


def _installed(package: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True, check=False)
    return done.stdout == "install ok installed"


@contextlib.contextmanager
def emulation() -> Iterator[None]:
    """Lets the kernel run AArch64 programs through QEMU; takes back what it changed."""
    mounted = (BINFMT / "register").exists()
    if not mounted:
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    entry = BINFMT / "qemu-aarch64"
    registered = entry.exists()
    try:
        if not registered:
            (BINFMT / "register").write_text(f"{MAGIC}{MASK}:{EMULATOR}:F")
        yield
    finally:
        if not registered and entry.exists():
            entry.write_text("-1")
        if not mounted:
            subprocess.run(["umount", str(BINFMT)], check=False)


def running() -> Engine | None:
    """The engine that the environment names or that listens at the usual place.

    NoEngineError where its client has no buildx: a second engine beside it would take its network down.
    """
    docker = shutil.which("docker")
    if docker is None:
        return None
    done = subprocess.run([docker, "info", "--format", "{{json .}}"], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    if subprocess.run([docker, "buildx", "version"], capture_output=True, check=False).returncode:
        raise NoEngineError(f"a Docker engine runs here, but its client {docker} has no buildx: install docker-buildx")
    store = str(json.loads(done.stdout).get("DriverStatus"))
    return Engine(docker, os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), "containerd" in store)


@contextlib.contextmanager
def started(home: Path) -> Iterator[Engine]:
    """Starts dockerd with all its state under `home` and stops it by its own pid; mounts and state are gone after."""
    docker = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else shutil.which("docker")
    dockerd = shutil.which("dockerd")
    if docker is None or dockerd is None:
        raise NoEngineError("no Docker engine runs here and dockerd is not installed")
    others = _processes("dockerd")
    if others:
        raise NoEngineError(
            f"a dockerd runs here (process {others[0]}) that does not answer: set DOCKER_HOST to it, or stop it; "
            "two would take each other's network down"
        )
    home.mkdir(parents=True, exist_ok=True)
    config = home / "daemon.json"
    config.write_text(
        json.dumps(
            {
                "features": {"containerd-snapshotter": True},
                "mtu": 1400,  # machines behind a tunnel drop larger packets without a word
                "hosts": [f"unix://{home}/docker.sock"],
                "data-root": str(home / "data"),
                "exec-root": str(home / "exec"),
                "pidfile": str(home / "docker.pid"),
                "userland-proxy": False,
            }
        )
    )
    forwarding = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    rules, bridge, folders = _firewall(), BRIDGE.exists(), _folders_outside()
    with (home / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            # Ends also when this process is killed.
            ["setpriv", "--pdeathsig", "TERM", dockerd, "--config-file", str(config)],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    engine = Engine(docker, f"unix://{home}/docker.sock", multi=True)
    try:
        _wait_for(engine, process, home / "dockerd.log")
        yield engine
    finally:
        _stop(process)
        _restore_firewall(rules)
        Path("/proc/sys/net/ipv4/ip_forward").write_text(forwarding)
        if not bridge:
            subprocess.run(["ip", "link", "delete", BRIDGE.name], capture_output=True, check=False)
        _clear(home)
        for folder in _folders_outside() - folders:
            _remove_empty(folder)


def _processes(name: str) -> list[int]:
    """Running processes of this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return sorted(found)


def _wait_for(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        done = subprocess.run([engine.docker, "info"], env=engine.environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    last = [line for line in log.read_text(errors="replace").splitlines() if "level=info" not in line]
    raise NoEngineError(f"dockerd does not start here: {last[-1] if last else 'no message'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends dockerd (its containerd ends with it)."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # what it may have left in its own process group


def _firewall() -> str:
    """The packet filter's rules, as iptables-save prints them: only of tables that are in use."""
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=False).stdout


def _restore_firewall(before: str) -> None:
    """Puts back the rules from before the engine; a table that only the engine used is emptied."""
    subprocess.run(["iptables-restore"], input=before, text=True, capture_output=True, check=False)
    used = set(re.findall(r"^\*(\w+)", before, re.MULTILINE))
    table = ""
    for line in _firewall().splitlines():
        if line.startswith("*"):
            table = line[1:]
            if table not in used:
                for action in ("-F", "-X"):
                    subprocess.run(["iptables", "-t", table, action], capture_output=True, check=False)
        elif line.startswith(":") and table not in used and line.split()[1] != "-":
            subprocess.run(["iptables", "-t", table, "-P", line.split()[0][1:], "ACCEPT"], check=False)


def _folders_outside() -> set[Path]:
    """What an engine makes outside its own folders: control groups and a place for plugins."""
    groups = Path("/sys/fs/cgroup")
    return {p for p in (*groups.glob("docker"), *groups.glob("*/docker"), Path("/run/docker")) if p.is_dir()}


def _remove_empty(folder: Path) -> None:
    """Removes a folder of empty folders; a control group's own files do not count."""
    for path in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        with contextlib.suppress(OSError):  # still in use
            path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _clear(home: Path) -> None:
    """Unmounts what the engine mounted under its folder and removes the folder."""
    time.sleep(0.5)
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(f"{home}/")), reverse=True):
        subprocess.run(["umount", "-l", point], check=False)
    shutil.rmtree(home, ignore_errors=True)
