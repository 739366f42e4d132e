"""`pytest tests/properties --backend vllm,torch_loop`: which properties does a backend have?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import moelab_kernels
from moelab.backend_loading import label_of
from property_driver import BackendCrashedError, Driver, Worker

WORDS = {"passed": "yes", "failed": "NO", "crashed": "CRASH", "skipped": "not for it"}
RESULTS = pytest.StashKey[dict[str, dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("moelab properties")
    group.addoption("--backend", default=None, help="comma-separated, FILE.py:Class too (default: ours)")
    group.addoption("--properties-json", type=Path, default=None, help="write {backend: {property: result}} there")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = defaultdict(dict)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("backend", None)
        names = chosen.split(",") if chosen else [f"moelab:{isa}" for isa in moelab_kernels.isas()]
        metafunc.parametrize("driver", names, indirect=True)


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """The processes of the backends; each starts when it is first asked."""

    class Started(dict[str, Worker]):
        def __missing__(self, name: str) -> Worker:
            self[name] = Worker(name, tmp_path_factory.mktemp("worker"))
            return self[name]

    started = Started()
    yield started
    for worker in started.values():
        worker.close()


@pytest.fixture
def driver(request: pytest.FixtureRequest, workers: dict[str, Worker]) -> Driver:
    return Driver(workers[str(request.param)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    report = yield
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "driver" in callspec.params and (report.when == "call" or not report.passed):
        results = item.config.stash[RESULTS][label_of(callspec.params["driver"])]
        name = item.function.__name__.removeprefix("test_")  # type: ignore[attr-defined]
        crashed = call.excinfo is not None and call.excinfo.errisinstance(BackendCrashedError)
        outcome = "crashed" if crashed else report.outcome
        rank = ("skipped", "passed", "failed", "crashed")  # several cases of one property: the worst one counts
        results[name] = max(results.get(name, "skipped"), outcome, key=rank.index)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if path := config.getoption("properties_json", None):
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if config.getoption("backend", None):
        terminalreporter.section("properties")
        for backend, found in sorted(results.items()):
            for name, outcome in sorted(found.items()):
                terminalreporter.write_line(f"{backend:20} {name.replace('_', ' '):60} {WORDS[outcome]}")
