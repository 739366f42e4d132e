"""`pytest tests/properties --backend vllm,torch_loop`: which properties does a backend have?"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

import moelab_kernels
from property_driver import Driver

RESULTS = pytest.StashKey[dict[str, dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("moelab properties")
    group.addoption("--backend", default=None, help="comma-separated backends (default: ours, every usable ISA)")
    group.addoption("--properties-json", type=Path, default=None, help="write {backend: {property: result}} there")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = defaultdict(dict)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("backend", None)
        names = chosen.split(",") if chosen else [f"moelab:{isa}" for isa in moelab_kernels.isas()]
        metafunc.parametrize("driver", names, indirect=True)


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(str(request.param))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    report = yield
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "driver" in callspec.params and (report.when == "call" or report.skipped):
        results = item.config.stash[RESULTS][callspec.params["driver"]]
        name = item.function.__name__.removeprefix("test_")  # type: ignore[attr-defined]
        rank = ("skipped", "passed", "failed")  # several cases of one property: the worst one counts
        results[name] = max(results.get(name, "skipped"), report.outcome, key=rank.index)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if path := config.getoption("properties_json", None):
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if config.getoption("backend", None):
        terminalreporter.section("properties")
        for backend, found in sorted(results.items()):
            for name, outcome in sorted(found.items()):
                word = {"passed": "yes", "failed": "NO", "skipped": "not for it"}[outcome]
                terminalreporter.write_line(f"{backend:20} {name.replace('_', ' '):60} {word}")
