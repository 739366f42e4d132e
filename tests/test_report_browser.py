"""The report in a real browser: headless Chromium, every page, wide and narrow, light and dark.

Needs playwright and axe-playwright-python (the latter carries axe-core), and a Chromium of the system: MOELAB_BROWSER,
or chromium, chromium-browser or google-chrome in PATH. Without them the tests are skipped, or fail where
MOELAB_BROWSER_REQUIRED is set, as it is in CI.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import synthetic_model_runs
import synthetic_result

REQUIRED = bool(os.environ.get("MOELAB_BROWSER_REQUIRED"))
EXECUTABLE = os.environ.get("MOELAB_BROWSER") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
if not REQUIRED:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")
    if EXECUTABLE is None:
        pytest.skip("no Chromium found: apt-get install chromium, or set MOELAB_BROWSER", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

from moelab.report import write_report  # noqa: E402
from moelab.report.palette import BACKENDS, PHASES  # noqa: E402

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844), "small phone": (320, 640)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it: losses, a broken measurement, two settings, phases, long names."""
    folder = tmp_path_factory.mktemp("browser")
    paths = []
    for number, threads in enumerate((2, 1)):
        document = json.loads(
            json.dumps(synthetic_result.build(number, broken=threads == 2, workloads=synthetic_result.WORKLOADS[:2]))
        )
        document["moelab"]["run"]["command"] += ["--", "--workload", "gpt-oss-20b,gemma-4-26b-a4b", "--threads", "2"]
        for entry in document["benchmarks"]:
            info = entry["extra_info"]
            info["setting"]["threads"] = threads
            if info["backend"]["label"] == "moelab":
                info["phases"] = {"route": 1e-5, "pack": 2e-5, "gemm1": 6e-4, "gemm2": 3e-4, "combine": 5e-5}
                if info["case"]["tokens"] == 4:
                    info["verdict"]["table"] = "slower"
        paths.append(folder / f"{'a-very-long-name-without-a-place-to-break' * 2}{number}.json")
        paths[-1].write_text(json.dumps(document))
    paths.append(folder / "crowded.json")
    paths[-1].write_text(json.dumps(_crowded()))
    paths.append(folder / "models.json")
    paths[-1].write_text(json.dumps(synthetic_model_runs.build("gpt-oss-20b")))
    return write_report(paths, folder / "out").html.parent


def _crowded() -> dict[str, Any]:
    """Every backend, one of a long name, and very many numbers of tokens, on a machine of its own."""
    document = json.loads(json.dumps(synthetic_result.build(2, workloads=("gpt-oss-20b",))))
    document["machine_info"]["moelab"].update(machine_id="f" * 12)
    document["machine_info"]["moelab"]["cpu"]["name"] = "Crowded"
    present = {entry["extra_info"]["backend"]["name"] for entry in document["benchmarks"]}
    names = [*(name for name in BACKENDS if name not in present), "somebody's own kernel, of a very long name indeed"]
    numbers = [*range(1, 13), 16, 24, 32, 64, 128, 250, 256, 1024]
    return synthetic_result.with_tokens(synthetic_result.with_backends(document, names), numbers)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE is not None, "no Chromium found: apt-get install chromium, or set MOELAB_BROWSER"
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs privileges that containers lack; the pages are ours and load nothing.
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def html_files(site: Path) -> list[Path]:
    files = sorted(site.rglob("*.html"))
    assert len(files) == 7
    return files


def open_page(browser: Browser, path: Path, width: str = "desktop", **options: Any) -> Page:
    """The page at `path`, with whatever goes wrong collected in page.problems."""
    columns, rows = WIDTHS[width]
    page = browser.new_context(viewport={"width": columns, "height": rows}, **options).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(f"asked: {r.url}"))
    page.goto(path.as_uri())
    page.problems = problems  # type: ignore[attr-defined]
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_no_errors_no_requests_and_nothing_wider_than_the_screen(
    browser: Browser, site: Path, scheme: str, width: str
) -> None:
    for path in html_files(site):
        page = open_page(browser, path, width, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0], path.name
        assert page.problems == []  # type: ignore[attr-defined]
        page.context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", "desktop"), ("dark", "phone")])
@pytest.mark.parametrize("kind", ["index.html", "models/*.html", "machines/*.html", "from-layer-to-model.html"])
def test_axe_finds_nothing_serious(browser: Browser, site: Path, scheme: str, width: str, kind: str) -> None:
    page = open_page(browser, next(site.glob(kind)), width, color_scheme=scheme)
    result = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert result["testEngine"]["name"] == "axe-core"
    bad = [v for v in result["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in bad] == []
    page.context.close()


# Texts of one plot that leave it, or that lie on each other by more than a pixel or two; hatched bars and lines may
# touch text, text may not.
_TEXT_TROUBLE = """() => {
  const trouble = [];
  for (const svg of document.querySelectorAll('svg.plot')) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')]
      .map(t => [t.textContent, t.getBoundingClientRect()]);
    const name = svg.getAttribute('aria-label').slice(0, 40);
    for (const [text, b] of boxes) {
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
        trouble.push(`${name}: "${text}" leaves the plot`);
    }
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [s, a] = boxes[i], [t, b] = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 3) trouble.push(`${name}: "${s}" lies on "${t}"`);
    }
  }
  return trouble;
}"""


def test_no_text_of_a_plot_is_cut_or_covered(browser: Browser, site: Path) -> None:
    for path in html_files(site):
        page = open_page(browser, path)
        assert page.locator("svg.plot").count() > 0
        assert page.evaluate(_TEXT_TROUBLE) == [], path.name
        page.context.close()


def test_text_of_plots_is_readable_on_a_phone(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html", "phone")
    heights = page.evaluate(
        "[...document.querySelectorAll('svg.plot text')].map(t => t.getBoundingClientRect())"
        ".filter(b => b.width > b.height).map(b => b.height)"
    )
    assert min(heights) >= 8


def test_tables_on_a_phone_keep_their_captions_in_sight_and_their_rows_low(browser: Browser, site: Path) -> None:
    for path in html_files(site):
        page = open_page(browser, path, "phone")
        page.evaluate("document.querySelectorAll('.scroll').forEach(e => { e.scrollLeft = 40; })")
        ends = page.evaluate(
            "[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect())"
            ".map(b => [b.left, b.right])"
        )
        assert ends
        assert min(left for left, _ in ends) >= 0, path.name
        assert max(right for _, right in ends) <= WIDTHS["phone"][0], path.name
        narrow = page.evaluate(
            "[...document.querySelectorAll('td:not(.n)')].filter(e => e.textContent.length > 40 && e.clientWidth < 180)"
            ".map(e => e.textContent)"
        )
        assert narrow == [], path.name
        page.context.close()


def test_dark_mode_turns_page_and_plots_dark(browser: Browser, site: Path) -> None:
    shade = "s => s.match(/[0-9]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
    light, dark = (open_page(browser, site / "index.html", color_scheme=mode) for mode in ("light", "dark"))
    for page, is_dark in ((light, False), (dark, True)):
        background = page.evaluate(f"({shade})(getComputedStyle(document.body).backgroundColor)")
        text = page.evaluate(f"({shade})(getComputedStyle(document.querySelector('svg.plot text')).fill)")
        assert (background < 150) is is_dark
        assert (text > 500) is is_dark


def test_pages_are_whole_without_javascript(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html", java_script_enabled=False)
    assert page.get_by_role("heading", name="Speedup at a glance").is_visible()
    assert page.locator("svg.plot").first.is_visible()
    assert page.locator("button, input").count() == 0, "nothing that does nothing"


@pytest.mark.parametrize("file", ["index.html", "report.html"])
def test_light_or_dark_by_hand_beats_the_system_and_is_kept(browser: Browser, site: Path, file: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    plot = "getComputedStyle(document.querySelector('svg.plot text')).fill"
    page = open_page(browser, site / file, color_scheme="light")
    light = page.evaluate(background), page.evaluate(plot)
    page.get_by_role("button", name="Dark colours").click()
    dark = page.evaluate(background), page.evaluate(plot)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    page.reload()
    assert (page.evaluate(background), page.evaluate(plot)) == dark
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Light colours").click()
    assert (page.evaluate(background), page.evaluate(plot)) == light
    assert page.problems == []  # type: ignore[attr-defined]
    page.context.close()


def test_hatched_bars_follow_the_palette_in_the_dark(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html", color_scheme="dark")
    grounds = page.evaluate(
        "[...document.querySelectorAll('svg.plot pattern rect')].map(r => getComputedStyle(r).fill)"
    )
    assert grounds
    wanted = {look.dark for look in (*BACKENDS.values(), *PHASES.values())}
    shown = {"#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", fill)[:3]) for fill in grounds}
    assert shown <= wanted


def test_tables_sort_by_number_and_back(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "models" / "gpt-oss-20b.html")
    table = page.locator("table").first
    column = [name.strip() for name in table.locator("thead th").all_inner_texts()].index("moelab [ms]")
    button = table.locator("thead th").nth(column).get_by_role("button")

    def values() -> list[float]:
        return [float(text) for text in table.locator(f"tbody tr > :nth-child({column + 1}) .v").all_inner_texts()]

    before = values()
    for order in ("descending", "ascending"):
        button.focus()
        page.keyboard.press("Enter")
        assert table.locator("thead th").nth(column).get_attribute("aria-sort") == order
        assert values() == sorted(before, reverse=order == "descending")
    button.click()
    assert values() == before
    assert table.locator("[aria-sort]").count() == 0
    result = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert [v["id"] for v in result["violations"] if v["impact"] in ("serious", "critical")] == []


def test_tables_filter_their_rows(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html")
    box = page.get_by_role("searchbox").first
    box.fill("gpt-oss-20b 256")
    told = page.get_by_role("status").first.inner_text()
    assert told.split(" of ")[0] == "1"
    shown = page.locator(".filter + .scroll").first.locator("tbody tr:visible")
    assert [text.split("\n")[0] for text in shown.locator("th").all_inner_texts()] == ["gpt-oss-20b, 256"]
    box.fill("")
    assert page.locator(".filter + .scroll").first.locator("tbody tr[hidden]").count() == 0


def test_every_page_is_reached_by_clicking(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html")
    menu = page.get_by_role("navigation", name="Report").get_by_role("link")
    names = menu.all_inner_texts()
    assert len(names) == 6
    for name in names:
        page.get_by_role("navigation", name="Report").get_by_role("link", name=name, exact=True).click()
        page.wait_for_load_state()
        assert page.get_by_role("heading", level=1).is_visible()
        assert page.locator("[aria-current=page]").inner_text() == name
    assert page.problems == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("file", ["index.html", "report.html"])
def test_data_of_a_figure_is_one_click_away(browser: Browser, site: Path, file: str) -> None:
    page = open_page(browser, site / file)
    link = page.locator("figure .downloads a").first
    name = link.get_attribute("download")
    assert name is not None
    with page.expect_download() as waiting:
        link.click()
    assert waiting.value.suggested_filename == name
    assert Path(waiting.value.path()).read_bytes() == (site / "data" / name).read_bytes()


def test_everything_is_reached_by_keyboard(browser: Browser, site: Path) -> None:
    page = open_page(browser, site / "index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.reload()
    wanted = page.locator("a[href]:visible, [tabindex='0'], button:visible, input:visible").count()
    reached: set[str] = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "(() => { const e = document.activeElement; const all = [...document.querySelectorAll('*')];"
            " return e === document.body ? '' : all.indexOf(e) + ' ' + getComputedStyle(e).outlineStyle; })()"
        )
        if where:
            reached.add(where)
    assert len(reached) >= wanted
    assert {place.split()[1] for place in reached} == {"solid"}, "focus must be visible"
