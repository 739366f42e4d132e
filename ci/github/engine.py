#!/usr/bin/env python3
"""Makes the Docker engine of a GitHub runner fit for `ci/lab images`: one tag for two architectures, and an emulator.

Turns on the engine's containerd image store (the runners' engine has it off) and installs QEMU's user emulation, which
registers itself. Changes the machine, with sudo: does nothing but on one of GitHub's own runners.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SETTINGS = Path("/etc/docker/daemon.json")


def with_image_store(text: str) -> str:
    """The engine's settings with the containerd image store on; all else stays."""
    settings = json.loads(text) if text.strip() else {}
    settings["features"] = {**settings.get("features", {}), "containerd-snapshotter": True}
    return json.dumps(settings, indent=2) + "\n"


def main() -> int:
    """Exit status 0 where the engine is fit, or where this is no runner of GitHub's."""
    if os.environ.get("RUNNER_ENVIRONMENT") != "github-hosted":
        print("engine: nothing changed: not a runner of GitHub's own")
        return 0
    settings = with_image_store(SETTINGS.read_text() if SETTINGS.exists() else "")
    subprocess.run(["sudo", "mkdir", "-p", str(SETTINGS.parent)], check=True)
    subprocess.run(["sudo", "tee", str(SETTINGS)], input=settings, text=True, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["sudo", "systemctl", "restart", "docker"], check=True)
    subprocess.run(["sudo", "apt-get", "-q", "update"], check=True)
    subprocess.run(["sudo", "apt-get", "-qy", "install", "--no-install-recommends", "qemu-user-static"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
