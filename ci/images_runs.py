"""Runs the built images with the Python docker SDK and checks what they do. The SDK never builds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# An Arm core of every kind that matters: everything; no BF16, in two generations.
CORES = ("max", "neoverse-n1", "cortex-a76")
WITHOUT_BF16 = ("neoverse-n1", "cortex-a76")
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


class CheckError(AssertionError):
    """An image that does not do what it should; the message holds what it printed."""


@dataclass
class Runner:
    """Runs containers the way the README tells users to: no rights, a read-only root, room in /tmp only."""

    client: Any  # docker.DockerClient; the SDK has no types
    done: list[tuple[str, float]] = field(default_factory=list)

    def run(
        self, image: str, command: Sequence[str], *, platform: str, env: dict[str, str] | None = None,
        entrypoint: Sequence[str] | None = None, volumes: dict[str, str] | None = None, user: str | None = None,
        limit: float = 600.0, **options: Any,
    ) -> tuple[int, str]:  # fmt: skip
        """Exit status and output of one container; it is removed afterwards, also when it ran too long."""
        container = self.client.containers.create(
            image, list(command), platform=platform, environment=env or {}, entrypoint=entrypoint, user=user,
            volumes={host: {"bind": path, "mode": "rw"} for host, path in (volumes or {}).items()},
            read_only=True, tmpfs={"/tmp": "size=2g,exec"}, cap_drop=["ALL"], network_mode="none",  # noqa: S108
            security_opt=["no-new-privileges"], detach=True, **options,
        )  # fmt: skip
        try:
            container.start()
            status = int(container.wait(timeout=limit)["StatusCode"])
            return status, container.logs().decode(errors="replace")
        finally:
            container.remove(force=True)

    @contextmanager
    def check(self, title: str) -> Iterator[None]:
        """Says what is checked and how long it took."""
        start = time.monotonic()
        yield
        self.done.append((title, time.monotonic() - start))
        print(f"  ok  {title} ({self.done[-1][1]:.0f} s)", flush=True)


def expect(truth: object, what: str, output: str) -> None:
    """Fails with what was expected and the end of what was printed."""
    if not truth:
        raise CheckError(f"{what}; the container printed:\n{output[-3000:]}")


def self_check(runner: Runner, image: str, platform: str, core: str | None = None) -> str:
    """The image is for this platform (asked inside it), checks itself, and picks a kernel that this core has."""
    env = {"QEMU_CPU": core} if core else {}
    with runner.check(f"{platform} {core or 'native'}: self-check"):
        probe = (
            "import json, platform, moelab_kernels as mk; "
            "print(json.dumps([platform.machine(), mk.isas(), mk.build_info()]))"
        )
        status, text = runner.run(image, ["-P", "-c", probe], platform=platform, env=env, entrypoint=["python3"])
        expect(status == 0, "the kernels load", text)
        machine, isas, build = json.loads(text.strip().splitlines()[-1])
        expect(machine == MACHINES[platform], f"the container is {MACHINES[platform]}", text)
        expect(str(build).find(MACHINES[platform]) >= 0, f"the library is built for {MACHINES[platform]}", text)
        status, text = runner.run(image, ["machine"], platform=platform, env=env)
        expect(status == 0 and f"kernels: {isas[0]}" in text, "the start-up lines name the kernel", text)
        expect(("emulated: correctness only" in text) == (core is not None), "emulation is seen, and only there", text)
        if core in WITHOUT_BF16:
            expect("has no BF16 instructions" in text and isas[0] == "neon", "falls back to neon by name", text)
    return str(isas[0])


def refuses_missing_isa(runner: Runner, image: str, core: str) -> None:
    """A kernel that the core lacks is refused with a message, never with an illegal instruction."""
    with runner.check(f"linux/arm64 {core}: neon_bf16 refused"):
        code = "import moelab_kernels as mk; mk.peak('bf16', isa='neon_bf16')"
        env = {"QEMU_CPU": core}
        status, text = runner.run(image, ["-P", "-c", code], platform="linux/arm64", env=env, entrypoint=["python3"])
        expect(status == 1 and "neon_bf16" in text, "an exception that names neon_bf16", text)


def refuses_to_time(runner: Runner, image: str) -> None:
    """No time is taken under emulation."""
    with runner.check("linux/arm64 max: bench refuses to time"):
        words = ["bench", "--quick", "--workload", "tiny", "--out", "/tmp/results"]  # noqa: S108
        status, text = runner.run(image, words, platform="linux/arm64", env={"QEMU_CPU": "max"})
        expect(status == 2 and "emulated" in text, "exit status 2 and the word emulated", text)


def cpp_tests(runner: Runner, image: str, platform: str, core: str | None, words: Sequence[str]) -> None:
    """The C++ tests of the kernels."""
    with runner.check(f"{platform} {core or 'native'}: C++ tests"):
        env = {"QEMU_CPU": core} if core else {}
        binary = ["/opt/moelab/cpptests/moelab_tests"]
        status, text = runner.run(image, list(words), platform=platform, env=env, entrypoint=binary)
        expect(status == 0, "all C++ tests pass", text)
        print("      " + text.strip().splitlines()[-1])


def python_tests(runner: Runner, image: str, platform: str, core: str | None, files: Sequence[str]) -> None:
    """The Python tests of the kernels and the oracle."""
    with runner.check(f"{platform} {core or 'native'}: Python tests"):
        env = {"QEMU_CPU": core} if core else {}
        words = ["-q", "-m", "not slow and not emulated", *files]
        status, text = runner.run(image, words, platform=platform, env=env)
        expect(status == 0, "all Python tests pass", text)
        print("      " + text.strip().splitlines()[-1])


def limits(runner: Runner, image: str) -> None:
    """The limits of the container's control group are what it reports."""
    with runner.check("linux/amd64 native: limits of the container"):
        status, text = runner.run(
            image, ["machine"], platform="linux/amd64", cpuset_cpus="0", nano_cpus=500_000_000, mem_limit="1g"
        )
        expect(status == 0, "machine works in 1 GiB", text)
        expect("1 usable CPUs on 1 cores (limit 0.5)" in text, "one CPU and the limit 0.5", text)
        expect("(limit 1.0 GiB)" in text, "the memory limit", text)


def lean(runner: Runner, image: str, platform: str) -> None:
    """No compiler, no GPU libraries, not root; results need a folder, and a missing one is said in words."""
    with runner.check(f"{platform}: no compiler, no GPU library, not root"):
        look = (
            "id -u; find / -xdev -path /var/lib/dpkg -prune -o \\( -name 'cc1*' -o -name 'gcc*' -o -name 'libcuda*' "
            "-o -name 'libcudnn*' -o -name 'libcublas*' -o -name 'libnvrtc*' -o -name 'libamdhip*' \\) "
            "-type f -print 2>/dev/null"
        )
        status, text = runner.run(image, ["-c", look], platform=platform, entrypoint=["sh"])
        lines = text.split()
        expect(lines and lines[0] == "10001", "the user is 10001", text)
        expect(len(lines) == 1, "nothing found", text)
        status, text = runner.run(image, ["bench", "--quick", "--workload", "tiny"], platform=platform)
        expect(status == 3 and "/results" in text, "exit status 3 and how to mount /results", text)


def with_compilers(runner: Runner, image: str, folder: Path, user: str) -> None:
    """The image `ab` builds revisions of the clone in FOLDER/src: two for `ab`, that of a result for `reproduce`.

    Without network, with a read-only root, as somebody who owns the clone. Built with little optimization, to be quick:
    what is measured means nothing here.
    """
    fast = {"CMAKE_ARGS": "-DCMAKE_CXX_FLAGS_RELEASE=-O1"}
    volumes = {str(folder / "src"): "/src", str(folder / "results"): "/results"}
    case = ["--quick", "--workload", "tiny", "--tokens", "1", "--budget", "5"]
    with runner.check("linux/amd64 native: ab in the image with compilers"):
        words = ["ci/ab.py", "HEAD", *case, "--out", "/results/ab"]
        status, text = runner.run(image, words, platform="linux/amd64", volumes=volumes, user=user, env=fast)
        expect(status in (0, 1) and "ab: the work tree against" in text, "a verdict about two builds", text)
        document = json.loads((folder / "results" / "ab" / "result.json").read_text())
        used = {entry["extra_info"]["backend"]["label"] for entry in document["benchmarks"]}
        expect(len(used) == 2, "both revisions are in the result", str(used))
    with runner.check("linux/amd64 native: reproduce in the image with compilers"):
        words = ["-m", "moelab", "reproduce", "/results/out/result.json", "--out", "/results/again"]
        status, text = runner.run(image, words, platform="linux/amd64", volumes=volumes, user=user, env=fast)
        expect(status in (0, 1) and "agree" in text, "each case is compared", text)
        old, new = (json.loads((folder / "results" / name / "result.json").read_text()) for name in ("out", "again"))
        expect(old["moelab"]["source"]["commit"] == new["moelab"]["source"]["commit"], "the same commit", text)


def quick_bench(runner: Runner, image: str, digest: str, folder: Path, words: Sequence[str]) -> None:
    """A bench whose result file names the image that made it."""
    with runner.check("linux/amd64 native: bench --quick"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # the container's user is another one
        status, text = runner.run(
            image, ["bench", "--quick", "--out", "/results/out", *words], platform="linux/amd64",
            env={"MOELAB_IMAGE_DIGEST": digest}, volumes={str(folder): "/results"},
        )  # fmt: skip
        expect(status == 0, "the bench passes", text)
        document = json.loads((folder / "out" / "result.json").read_text())
        expect(document["moelab"]["image"] == digest, f"the result names {digest}", str(document["moelab"]["image"]))
        expect(document["benchmarks"], "something was measured", text)
        expect(document["moelab"]["source"]["commit"], "the result names the commit", text)
        expect(any((folder / "out" / "report").glob("*.html")), "a report lies beside the result", text)
