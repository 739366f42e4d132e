"""An arm64 root folder with Python and the C++ and OpenMP libraries, made on another architecture in seconds.

Packages are only downloaded and unpacked (apt with an arm64 configuration of its own, then dpkg-deb -x): nothing
runs emulated and nothing on this system changes. Python wheels for arm64 come from pip with --platform.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from arm_tools import say

PACKAGES = ("python3", "libgomp1", "libstdc++6")
WHEELS = ("numpy", "scipy", "ml_dtypes", "pytest", "iniconfig", "packaging", "pluggy", "Pygments")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
UBUNTU_PORTS = "http://ports.ubuntu.com/ubuntu-ports"  # Ubuntu keeps arm64 apart from amd64


class RootError(RuntimeError):
    """The arm64 root could not be made."""


def python_of(root: Path) -> Path:
    """The root's interpreter; RootError when there is none."""
    found = sorted(
        path for path in (root / "usr" / "bin").glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name)
    )
    if not found:
        raise RootError(f"{root}: no python3 in it")
    return found[-1]


def make_root(folder: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """folder/root, made once; remade when the packages or this machine's distribution change."""
    root, stamp = folder / "root", folder / "root.stamp"
    wanted = f"{_distribution()} {packages} {_digest([Path(__file__)])}"
    if stamp.exists() and stamp.read_text() == wanted:
        return root
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise RootError(f"{tool} is not here; the arm64 root is made of Debian or Ubuntu packages")
    say("making an arm64 root with Python from Debian packages")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for directory in ("bin", "lib", "sbin"):  # before the packages: some still say /lib
        (root / "usr" / directory).mkdir(parents=True)
        (root / directory).symlink_to(f"usr/{directory}")
    for package in _download(folder / "apt", packages):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    python_of(root)
    stamp.write_text(wanted)
    return root


def make_site(folder: Path, root: Path, constraints: Path, *, wheels: Sequence[str] = WHEELS) -> Path:
    """folder/site: arm64 wheels for the root's Python, in their own versions or those of the constraints file."""
    site, stamp = folder / "site", folder / "site.stamp"
    version = python_of(root).name.removeprefix("python")
    pins = [name if "==" in name else _pin(name, constraints) for name in wheels]
    wanted = f"{version} {pins} {_digest([Path(__file__)])}"
    if stamp.exists() and stamp.read_text() == wanted:
        return site
    say(f"installing arm64 wheels for Python {version}: {' '.join(pins)}")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    tags = ["--python-version", version, "--implementation", "cp"]
    tags += [word for abi in (f"cp{version.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    tags += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-compile"]
    subprocess.run([*command, "--only-binary=:all:", "--target", str(site), *tags, *pins], check=True)
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        # Compiled here: an emulated import would compile every module each time it cannot write its cache.
        command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "-x", r"/tests?/"]
        subprocess.run([*command, str(site), str(root / "usr/lib")], check=False, capture_output=True)
    stamp.write_text(wanted)
    return site


def _download(apt: Path, packages: Sequence[str]) -> list[Path]:
    """The arm64 packages and everything they depend on."""
    for part in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Get::List-Cleanup": "false",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::Etc::SourceList": _sources(apt),
        "Dir::Etc::Preferences": apt / "etc/preferences",
        "Dir::Etc::PreferencesParts": apt / "etc/preferences.d",
    }
    command = ["apt-get", "-qq", "-y"]
    command += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run([*command, "update"])
    # The empty dpkg status makes apt resolve everything, libc included.
    _run([*command, "--download-only", "install", *packages])
    files = sorted((apt / "archives").glob("*.deb"))
    if not files:
        raise RootError("apt-get downloaded nothing")
    return files


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RootError(f"{command[0]} {command[-1]} for arm64 failed:\n{(done.stdout + done.stderr)[-1500:]}")


def _sources(apt: Path) -> Path:
    """The system's own distribution sources, for arm64; keys and mirrors stay as the system has them."""
    distribution = _distribution()
    codename = distribution.split()[-1]
    entries = list(_one_line_entries()) + list(_deb822_entries())
    lines = []
    for options, address, suite, components in entries:
        if suite.split("-")[0].split("/")[0] != codename:
            continue  # third-party sources
        where = UBUNTU_PORTS if distribution.startswith("ubuntu") and "ports" not in address else address
        lines.append(f"deb [{options}] {where} {suite} {components}".replace(" []", ""))
    if not lines:
        raise RootError(f"no apt source for {distribution} found on this system")
    path = apt / "sources.list"
    path.write_text("\n".join(dict.fromkeys(lines)) + "\n")
    return path


Entry = tuple[str, str, str, str]  # options, address, suite, components


def _one_line_entries() -> Iterable[Entry]:
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.list"))]:
        for line in path.read_text().splitlines() if path.exists() else []:
            match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line)
            if match:
                kept = [option for option in (match[1] or "").split() if option.startswith(("signed-by", "trusted"))]
                yield " ".join(kept), match[2], match[3], match[4]


def _deb822_entries() -> Iterable[Entry]:
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([A-Za-z-]+):\s*(.*)$", stanza, re.MULTILINE))
            if "deb" not in fields.get("Types", "").split():
                continue
            key = fields.get("Signed-By", "")
            options = f"signed-by={key}" if key.startswith("/") else ""
            for address in fields.get("URIs", "").split():
                for suite in fields.get("Suites", "").split():
                    yield options, address, suite, fields.get("Components", "")


def _distribution() -> str:
    """Name and code name, such as debian bookworm."""
    release = Path("/etc/os-release")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', release.read_text() if release.exists() else "", re.MULTILINE))
    return f"{fields.get('ID', 'unknown')} {fields.get('VERSION_CODENAME', 'unknown')}"


def _pin(name: str, constraints: Path) -> str:
    match = re.search(rf"^{re.escape(name)}==\S+", constraints.read_text(), re.MULTILINE | re.IGNORECASE)
    if match is None:
        raise RootError(f"{constraints}: no version of {name}")
    return match[0]


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
