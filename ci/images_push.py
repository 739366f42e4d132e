#!/usr/bin/env python3
"""Pushes the image: each architecture from a machine of its own, then one manifest over both (images.yml).

    images_push.py build --image NAME --architecture amd64 --out FOLDER     pushes by digest, with SBOM and provenance
    images_push.py manifest --image NAME --digests FOLDER                   tags both; writes digest=… to $GITHUB_OUTPUT

REF_NAME (the branch or tag that is built) becomes the tag. Needs docker with buildx, logged in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH hides this folder
from images_build import BAKE, ROOT, commit, commit_time

NAME = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
ARCHITECTURES = ("amd64", "arm64")


def image_name(text: str) -> str:
    """A registry's name for the image: lower case, whatever the owner's case on GitHub."""
    if not NAME.fullmatch(text.lower()):
        raise ValueError(f"--image is {text!r}, expected HOST/OWNER/NAME")
    return text.lower()


def bake_arguments(image: str, architecture: str, metadata: Path) -> list[str]:
    """Arguments of `docker` that build and push one architecture, without a tag."""
    output = f"type=image,name={image},push-by-digest=true,name-canonical=true,push=true,rewrite-timestamp=true"
    return [
        "buildx", "bake", "--progress=plain", "-f", str(BAKE), "--metadata-file", str(metadata),
        "--set", f"lab.platform=linux/{architecture}", "--set", f"lab.output={output}", "--set", "lab.tags=",
        "--set", "lab.attest=type=sbom", "--set", "lab.attest=type=provenance,mode=max", "lab",
    ]  # fmt: skip


def build(image: str, architecture: str, out: Path) -> None:
    """Builds and pushes one architecture; its digest goes to OUT/ARCHITECTURE.json."""
    env = {**os.environ, "COMMIT": commit(), "SOURCE_DATE_EPOCH": str(commit_time())}
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "metadata.json"
        subprocess.run(["docker", *bake_arguments(image, architecture, metadata)], cwd=ROOT, env=env, check=True)
        digest = json.loads(metadata.read_text())["lab"]["containerimage.digest"]
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{architecture}.json").write_text(json.dumps({"architecture": architecture, "digest": digest}))
    print(f"images: {image}@{digest} for {architecture}")


def digests(folder: Path) -> list[str]:
    """The digests of both architectures; ValueError where one is missing or none."""
    found = []
    for architecture in ARCHITECTURES:
        path = folder / f"{architecture}.json"
        digest = str(json.loads(path.read_text())["digest"]) if path.exists() else ""
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"{path}: digest is {digest!r}, expected sha256:…")
        found.append(digest)
    return found


def manifest(image: str, folder: Path, ref: str) -> str:
    """Tags both architectures as one image; its digest."""
    tag = re.sub(r"[^A-Za-z0-9._-]", "-", ref)
    if not TAG.fullmatch(tag):
        raise ValueError(f"REF_NAME is {ref!r}, expected a branch or a tag")
    tags = [tag, "latest"] if re.fullmatch(r"v\d+(\.\d+)*", tag) else [tag]
    named = [word for t in tags for word in ("--tag", f"{image}:{t}")]
    sources = [f"{image}@{digest}" for digest in digests(folder)]
    subprocess.run(["docker", "buildx", "imagetools", "create", *named, *sources], check=True)
    done = subprocess.run(
        ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", f"{image}:{tag}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return str(json.loads(done.stdout)["digest"])


def main() -> int:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build")
    one.add_argument("--image", required=True)
    one.add_argument("--architecture", required=True, choices=ARCHITECTURES)
    one.add_argument("--out", required=True, type=Path)
    both = commands.add_parser("manifest")
    both.add_argument("--image", required=True)
    both.add_argument("--digests", required=True, type=Path)
    options = parser.parse_args()
    try:
        image = image_name(options.image)
        if options.command == "build":
            build(image, options.architecture, options.out)
            return 0
        digest = manifest(image, options.digests, os.environ.get("REF_NAME", ""))
    except ValueError as error:
        print(f"images_push: {error}", file=sys.stderr)
        return 1
    print(f"digest={digest}")
    if "GITHUB_OUTPUT" in os.environ:
        with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as out:
            out.write(f"digest={digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
