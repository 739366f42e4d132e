"""The images, as far as no engine is needed: what is pinned, what bake is told, what a container says at its start."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ci_scripts import load
from moelab import container

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "dockerfiles" / "lock"


def script(name: str) -> ModuleType:
    """A module of ci/."""
    return load(f"{name}.py", name)


def locked(name: str) -> dict[str, list[str]]:
    """Packages (name==version) of a lock file and their hashes."""
    found: dict[str, list[str]] = {}
    package = ""
    for line in (LOCK / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            package = line.split()[0]
            found[package] = []
        found.setdefault(package, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    found.pop("", None)
    return found


@pytest.mark.parametrize("name", ["build", "lab-amd64", "lab-arm64", "test-amd64", "test-arm64"])
def test_every_package_of_the_images_is_pinned_by_hash(name: str):
    packages = locked(name)
    assert packages
    assert [package for package, hashes in packages.items() if not hashes or "==" not in package] == []


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_no_image_carries_a_gpu_library(architecture: str):
    names = [package.partition("==")[0] for package in locked(f"lab-{architecture}")]
    assert [n for n in names if re.match(r"nvidia|cuda|triton|rocm|pytorch-triton", n)] == []


def test_both_architectures_have_the_same_packages_but_for_torch():
    amd64, arm64 = (set(locked(f"lab-{a}")) for a in ("amd64", "arm64"))
    different = {package.partition("==")[0] for package in amd64 ^ arm64}
    assert different <= {"torch", "setuptools"}  # torch 2.13 asks for setuptools, 2.10 does not


def test_the_lock_files_hold_what_the_project_asks_for():
    lock = script("images_lock")
    names = {re.sub(r"[-_.]+", "-", p.partition("==")[0]).lower() for p in locked("lab-amd64")}
    for line in lock.requirements(["bench", "bf16"]):
        name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line, maxsplit=1)[0]).lower()
        assert name in names, f"{name} is not in dockerfiles/lock: run ci/images_lock.py"


def test_the_next_releases_source_is_the_machines_own_with_the_release_replaced():
    text = (
        "Types: deb\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\nURIs: http://mirror.example/security\n"
        "Suites: bookworm-security\nComponents: main\n"
    )
    source = script("images_engine").next_source(text)
    assert "URIs: http://mirror.example/debian\n" in source
    assert "Suites: trixie\n" in source
    assert "bookworm" not in source
    with pytest.raises(ValueError, match="no stanza for bookworm"):
        script("images_engine").next_source("Types: deb\nURIs: http://x\nSuites: noble\n")


SNAPSHOT = """Types: deb
# http://snapshot.example/archive/debian/20260803T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
"""


def test_packages_come_from_the_day_of_the_base_image(tmp_path: Path):
    parts = tmp_path / "etc" / "sources.list.d"
    parts.mkdir(parents=True)
    (parts / "debian.sources").write_text(SNAPSHOT)
    target = tmp_path / "to"
    target.mkdir()
    subprocess.run(["sh", ROOT / "dockerfiles/apt/dated.sh", tmp_path / "etc", target], check=True)
    first, second = (target / "debian.sources").read_text().split("\n\n")
    assert "URIs: http://snapshot.example/archive/debian/20260803T000000Z\nCheck-Valid-Until: no\n" in first
    assert "mirror.example" not in first
    assert second == SNAPSHOT.split("\n\n")[1]  # a stanza without a date stays


@pytest.fixture
def ci_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of ci/ import each other."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))


@pytest.mark.usefixtures("ci_modules")
def test_no_engine_is_started_beside_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = script("images_engine")
    monkeypatch.setattr(engine, "_processes", lambda name: [4711])
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(engine.NoEngineError, match=r"a dockerd runs here \(process 4711\) that does not answer"):
        engine.started(tmp_path).__enter__()
    # An engine answers, and its client has no buildx.
    monkeypatch.setattr(
        engine.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, int("buildx" in command), "{}"),
    )
    with pytest.raises(engine.NoEngineError, match="has no buildx: install docker-buildx"):
        engine.running()


def test_a_running_process_is_found_by_name():
    engine = script("images_engine")
    own = Path("/proc/self/comm").read_text().strip()
    assert os.getpid() in engine._processes(own)
    assert engine._processes("no-such-name") == []


@pytest.mark.usefixtures("ci_modules")
@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_no_engine_is_one_line_and_a_failure_in_ci(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    images = script("images")

    def none() -> None:
        raise images.NoEngineError("no engine, for a reason")

    monkeypatch.setattr(images.images_engine, "running", none)
    monkeypatch.setattr("sys.argv", ["images.py"])
    monkeypatch.setenv("CI", ci)
    assert images.main() == status
    assert capsys.readouterr().out == "images: not built: no engine, for a reason\n"


@pytest.mark.usefixtures("ci_modules")
def test_bake_is_asked_for_both_platforms_and_the_second_build_rebuilds_what_is_in_the_image():
    build = script("images_build")
    words = build.arguments(
        ["lab"], ["linux/amd64", "linux/arm64"], offline=True, again=True, metadata=None, archive=Path("a.tar")
    )
    assert "*.platform=linux/amd64,linux/arm64" in words
    assert any(word.startswith("lab.output=type=oci,dest=a.tar,rewrite-timestamp=true,") for word in words)
    assert any(word.startswith("lab.no-cache-filter=base,") for word in words)
    stages = re.findall(r"^FROM .* AS ([\w-]+)$", (ROOT / "dockerfiles" / "Dockerfile").read_text(), re.MULTILINE)
    assert set(build.REBUILT) < set(stages)
    not_in_lab = {"test", "test-packages", "cpptests", "ab", "build-packages"}
    assert set(stages) - set(build.REBUILT) == {"wheels", "toolchain", *not_in_lab}


def archive(path: Path, layers: list[str], *, provenance: bool) -> Path:
    """An OCI archive of an image for both platforms."""
    with tarfile.open(path, "w") as tar:

        def add(name: str, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        def put(document: dict[str, Any]) -> str:
            digest = hashlib.sha256(json.dumps(document).encode()).hexdigest()
            add(f"blobs/sha256/{digest}", document)
            return f"sha256:{digest}"

        entries = []
        for name in ("amd64", "arm64"):
            platform = {"os": "linux", "architecture": name}
            config = put({**platform, "rootfs": {"diff_ids": [f"{name} {layer}" for layer in layers]}})
            manifest = put({"config": {"digest": config}, "layers": [{"size": 5}, {"size": 7}]})
            entries.append({"platform": platform, "digest": manifest})
            statement = put({"predicate": {"buildConfig": {"of": name}}})
            kind = {"in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2"}
            attestation = put({"layers": [{"digest": statement, "annotations": kind}]})
            about = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": manifest}
            unknown = {"os": "unknown", "architecture": "unknown"}
            if provenance:
                entries.append({"platform": unknown, "digest": attestation, "annotations": about})
        add("index.json", {"manifests": [{"digest": put({"manifests": entries})}]})
    return path


@pytest.mark.usefixtures("ci_modules")
def test_two_builds_must_have_the_same_layers_and_the_second_its_provenance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    images, read = script("images"), script("images_archive").Archive
    plain = read(archive(tmp_path / "plain", ["a", "b"], provenance=False))
    attested = read(archive(tmp_path / "attested", ["a", "b"], provenance=True))
    other = read(archive(tmp_path / "other", ["a", "c"], provenance=True))
    images.compare(plain, attested)
    assert "the same layers and manifests" in capsys.readouterr().out
    assert attested.sizes() == {"linux/amd64": 12, "linux/arm64": 12}
    with pytest.raises(images.runs.CheckError, match="differ in their layers"):
        images.compare(plain, other)
    with pytest.raises(images.runs.CheckError, match=r"provenance is attached for \[\]"):
        images.compare(plain, plain)


def test_the_offline_file_replaces_the_very_base_that_is_pinned():
    dockerfile = (ROOT / "dockerfiles" / "Dockerfile").read_text()
    base = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    assert base is not None
    assert f'"{base[1]}" = "target:local-base"' in (ROOT / "dockerfiles" / "docker-bake.offline.hcl").read_text()


@pytest.mark.usefixtures("ci_modules")
def test_a_push_is_by_digest_without_a_tag_and_attested(tmp_path: Path):
    push = script("images_push")
    words = push.bake_arguments("host/owner/moelab", "arm64", tmp_path / "m.json")
    assert "lab.platform=linux/arm64" in words
    assert any("push-by-digest=true" in word for word in words)
    assert {"lab.tags=", "lab.attest=type=sbom", "lab.attest=type=provenance,mode=max"} <= set(words)


@pytest.mark.usefixtures("ci_modules")
def test_wrong_names_and_digests_are_refused(tmp_path: Path):
    push = script("images_push")
    assert push.image_name("ghcr.io/Owner/MoeLab") == "ghcr.io/owner/moelab"
    with pytest.raises(ValueError, match=r"--image is 'x; id', expected HOST/OWNER/NAME"):
        push.image_name("x; id")
    (tmp_path / "amd64.json").write_text('{"digest": "sha256:' + "0" * 64 + '"}')
    with pytest.raises(ValueError, match=r"arm64.json: digest is ''"):
        push.digests(tmp_path)
    (tmp_path / "arm64.json").write_text('{"digest": "latest"}')
    with pytest.raises(ValueError, match=r"digest is 'latest', expected sha256"):
        push.digests(tmp_path)
    (tmp_path / "arm64.json").write_text('{"digest": "sha256:' + "1" * 64 + '"}')
    assert push.digests(tmp_path) == ["sha256:" + "0" * 64, "sha256:" + "1" * 64]
    with pytest.raises(ValueError, match="REF_NAME is ''"):
        push.manifest("host/owner/moelab", tmp_path, "")


def facts(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "architecture": "aarch64",
        "cpu": {"name": "Neoverse-N2"},
        "cpus": {"allowed": 4, "cores": 4},
        "memory": {"available": 16 * 2**30},
        "cgroup": {"cpu_limit": None, "memory_limit": None},
        "emulated": False,
    }
    return {**found, **changes}


def test_a_container_says_what_it_is():
    lines = container.describe(facts(), ["neon_bf16", "neon", "scalar"])
    assert lines == [
        "aarch64, Neoverse-N2, 4 usable CPUs on 4 cores (no limit)",
        "memory: 16.0 GiB available (no limit)",
        "kernels: neon_bf16 (usable here: neon_bf16, neon, scalar)",
    ]


def test_a_container_without_bf16_or_on_an_emulator_says_so():
    lines = container.describe(facts(emulated=True), ["neon", "scalar"])
    assert "this CPU has no BF16 instructions: neon is used" in lines
    assert "emulated: correctness only, times would mean nothing" in lines
    lines = container.describe(facts(), ["avx512", "avx512_bf16", "avx2", "scalar"])
    assert not any("no BF16" in line for line in lines), "its BF16 instructions are only slower than another's"


def test_limits_of_the_container_are_named_and_judged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MOELAB_IMAGE_DIGEST", raising=False)
    limited = facts(
        cgroup={"cpu_limit": 1.5, "memory_limit": 4 * 2**30}, memory={"available": 3 * 2**30}, emulated=False
    )
    lines = container.describe(limited, ["avx2"])
    assert "(limit 1.5)" in lines[0]
    assert "(limit 4.0 GiB)" in lines[1]
    found = container.warnings(limited, "bench")
    assert len(found) == 3
    assert "--cpuset-cpus" in found[0]
    assert "3.0 GiB" in found[1]
    assert "MOELAB_IMAGE_DIGEST" in found[2]
    assert container.warnings(limited, "machine") == []


def test_a_container_that_cannot_work_stops_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert container.obstacles([]) != []
    monkeypatch.setattr(container.tempfile, "TemporaryFile", lambda: (_ for _ in ()).throw(OSError(30, "Read-only")))
    assert "--tmpfs /tmp" in container.obstacles(["scalar"])[0]
    missing = container.results_obstacle("bench", tmp_path / "missing")
    assert missing is not None
    assert '-v "$PWD/results:/results"' in missing
    assert container.results_obstacle("machine", tmp_path / "missing") is None
