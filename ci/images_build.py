"""Builds the images with `docker buildx bake` and compares two builds."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images_engine import Engine

ROOT = Path(__file__).resolve().parents[1]
BAKE = ROOT / "docker-bake.hcl"
OFFLINE = ROOT / "dockerfiles" / "docker-bake.offline.hcl"
CA = Path("/etc/ssl/certs/ca-certificates.crt")
# zstd because gzip of a layer with torch takes half a minute.
COMPRESSED = "oci-mediatypes=true,compression=zstd,force-compression=true"
# What is built twice has the commit's times in all its layers. The engine's own exporter cannot do that, so these are
# written as archives.
REPEATABLE = ("lab",)
# What a second build of `lab` makes anew; the compilers' stage is not part of it.
REBUILT = ("base", "stdlib", "packages", "builder", "lab")


@dataclass(frozen=True)
class Offline:
    """What stands in for the registry of images and for torch's index on a machine that reaches neither."""

    base: Path
    wheels: Path
    pipconf: Path

    def variables(self) -> dict[str, str]:
        """Variables of dockerfiles/docker-bake.offline.hcl."""
        return {
            "BASE_FOLDER": str(self.base),
            "WHEELS_FOLDER": str(self.wheels),
            "CA_FILE": str(CA),
            "PIPCONF_FILE": str(self.pipconf),
        }


def commit() -> str:
    """The commit of this clone."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_time() -> int:
    """Its time: the time stamp of everything in the images."""
    done = subprocess.run(
        ["git", "show", "-s", "--format=%ct", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def arguments(
    targets: Sequence[str], platforms: Sequence[str], *, offline: bool, again: bool, attest: bool = False,
    metadata: Path | None, archive: Path,
) -> list[str]:  # fmt: skip
    """Arguments of `docker buildx bake`; with `attest` the build's provenance is attached.

    A repeatable target is written to the file `archive`, the others are kept by the engine.
    """
    words = ["buildx", "bake", "--progress=plain", "-f", str(BAKE)]
    words += ["-f", str(OFFLINE)] if offline else []
    words += ["--set", f"*.platform={','.join(platforms)}"]
    for target in targets:
        where = f"type=oci,dest={archive},rewrite-timestamp=true" if target in REPEATABLE else "type=image,unpack=true"
        words += ["--set", f"{target}.output={where},{COMPRESSED}"]
        if again:
            words += ["--set", f"{target}.no-cache-filter={','.join(REBUILT)}"]
        if attest:
            words += ["--set", f"{target}.attest=type=provenance,mode=max"]
    words += ["--metadata-file", str(metadata)] if metadata else []
    return [*words, *targets]


def bake(
    engine: Engine, targets: Sequence[str], platforms: Sequence[str], offline: Offline | None, *, again: bool = False,
    attest: bool = False, archive: Path, log: Path,
) -> dict[str, str]:  # fmt: skip
    """Builds targets for platforms; digest of each target's image. RuntimeError with the end of the log."""
    variables = {"COMMIT": commit(), "SOURCE_DATE_EPOCH": str(commit_time())}
    env = {**engine.environment, **variables, **(offline.variables() if offline else {})}
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as out:
        metadata = Path(folder) / "metadata.json"
        words = arguments(
            targets, platforms, offline=offline is not None, again=again, attest=attest, metadata=metadata,
            archive=archive,
        )  # fmt: skip
        status = subprocess.run(
            [engine.docker, *words], cwd=ROOT, env=env, stdout=out, stderr=out, check=False
        ).returncode
        if status:
            tail = log.read_text(errors="replace").splitlines()[-40:]
            raise RuntimeError("docker buildx bake failed:\n" + "\n".join(tail))
        built: dict[str, Any] = json.loads(metadata.read_text())
    return {target: str(built[target]["containerimage.digest"]) for target in targets}


def load(engine: Engine, archive: Path) -> None:
    """Gives an archive to the engine, for all its platforms. RuntimeError with what the engine says."""
    command = [engine.docker, "load", "--quiet", "--input", str(archive)]
    done = subprocess.run(command, env=engine.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"docker load failed: {done.stderr.strip()}")


def printed(docker: str, offline: Offline | None, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What bake would build, as JSON; needs no engine. Bake ignores misspelt keys: tests look at this."""
    words = [docker, "buildx", "bake", "--print", "-f", str(BAKE)]
    words += ["-f", str(OFFLINE)] if offline else []
    env = {**environment, **(offline.variables() if offline else {})}
    done = subprocess.run([*words, "lab", "test", "ab"], cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
