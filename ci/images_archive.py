"""Reads an image from an OCI archive: what its index, manifests, configurations and attestations say."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Archive:
    """An archive of one image for several platforms, as `docker buildx` writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as tar:
            self._files = {member.name: (member.offset_data, member.size) for member in tar if member.isfile()}
        (top,) = self._read("index.json")["manifests"]
        self.digest = str(top["digest"])
        self._entries: list[Json] = self.content(self.digest)["manifests"]

    def _read(self, name: str) -> Json:
        offset, size = self._files[name]
        with self.path.open("rb") as file:
            file.seek(offset)
            found: Json = json.loads(file.read(size))
        return found

    def content(self, digest: str) -> Json:
        """A JSON document by its digest."""
        return self._read(f"blobs/{digest.replace(':', '/')}")

    def manifests(self) -> dict[str, str]:
        """Digest of each platform's manifest, which covers its configuration and its layers as compressed."""
        return {
            f"{entry['platform']['os']}/{entry['platform']['architecture']}": str(entry["digest"])
            for entry in self._entries
            if entry["platform"]["os"] != "unknown"
        }

    def layers(self) -> dict[str, list[str]]:
        """Digests of the unpacked layers (they do not depend on a compressor) by platform."""
        return {
            platform: list(self.content(self.content(manifest)["config"]["digest"])["rootfs"]["diff_ids"])
            for platform, manifest in self.manifests().items()
        }

    def sizes(self) -> dict[str, int]:
        """Compressed bytes by platform: what a pull transfers."""
        return {
            platform: sum(int(layer["size"]) for layer in self.content(manifest)["layers"])
            for platform, manifest in self.manifests().items()
        }

    def provenance(self) -> dict[str, Json]:
        """What the attached statement says about how each platform was built."""
        platforms = {digest: platform for platform, digest in self.manifests().items()}
        found = {}
        for entry in self._entries:
            about = entry.get("annotations", {}).get("vnd.docker.reference.digest")
            for layer in self.content(entry["digest"])["layers"] if about in platforms else ():
                if "provenance" in layer.get("annotations", {}).get("in-toto.io/predicate-type", ""):
                    found[platforms[about]] = dict(self.content(layer["digest"])["predicate"])
        return found
