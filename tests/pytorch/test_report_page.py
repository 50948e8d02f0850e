"""The page of `uvmalloc trace html` in a browser: opened, clicked through and looked at.

The browser is Debian's Chromium without a window. The traced program has 128 MiB of weights. The
page shows the trace on a machine with 96 MiB, where each step moves all weights.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from uvmalloc._cli.environment import without_settings

_CHECKOUT = Path(__file__).resolve().parents[2]
NOTE = _CHECKOUT / "build" / "browser"
pytestmark = pytest.mark.skipif(
    not NOTE.exists(), reason="scripts/setup --browser installs Chromium"
)

PROGRAM = """import torch, uvmalloc
def load():
    return torch.zeros(8 << 20, device='cuda')
weights = [load() for _ in range(4)]
for step in range(2):
    uvmalloc.mark(f'step <{step}>')
    for weight in weights:
        weight.add_(1)
uvmalloc.mark('end')
"""
CHARTS = {
    "memory": ["device 0"],
    "residency": ["device 0"],
    "traffic": ["to the device", "to the host", "evicted", "used over the link"],
    "faults": ["faults"],
}
_DOUBLE_CLICK_MS = 600  # twice the longest time between the clicks of a double click
_WAIT_MS = 120_000  # for a busy machine


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    program, trace, page = folder / "train.py", folder / "run.trace", folder / "page.html"
    program.write_text(PROGRAM)
    uvmalloc = [sys.executable, "-m", "uvmalloc"]
    environment = without_settings(os.environ, "CUDA_", "LD_")
    record = ["sim", "--no-report", "--trace", trace, "--call-sites", "--", sys.executable, program]
    draw = ["trace", "html", trace, "-o", page, "--machine", "h100-pcie5", "--capacity", "96MiB",
            "--hints", "none"]  # fmt: skip
    environment["PYTHONPATH"] = (_CHECKOUT / "build" / "report").read_text().strip()
    for command in (record, draw):
        subprocess.run([*uvmalloc, *command], env=environment, check=True, timeout=300)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sys.path.append(NOTE.read_text().strip())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium-headless-shell"))
        yield chromium
        chromium.close()


class OpenPage:
    """The page with all charts drawn, its requests, and its error messages."""

    def __init__(self, browser: Any, file: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.set_default_timeout(_WAIT_MS)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.goto(file.as_uri())
        self.page.wait_for_function(
            "number => document.querySelectorAll('.js-plotly-plot .scatterlayer').length == number",
            arg=len(CHARTS),
        )

    def curves(self, chart: str) -> dict[str, dict[str, Any]]:
        """Returns by name: greatest value, colour, and whether a line with a length is drawn."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """chart => {
                const plot = document.getElementById(chart);
                return plot._fullData.map(curve => {
                    const line = plot.querySelector(`.trace${curve.uid} path.js-line`);
                    return {name: curve.name, most: Math.max(...plot.data[curve.index].y),
                            color: curve.line.color,
                            drawn: line !== null && line.getTotalLength() > 100};
                });
            }""",
            chart,
        )
        return {curve["name"]: curve for curve in found}

    def place_of(self, chart: str, curve: str) -> tuple[float, float]:
        """Returns where the curve first reaches its greatest value, in pixels of the window."""
        self.page.locator(f"#{chart}").scroll_into_view_if_needed()
        x, y = self.page.evaluate(
            """([chart, name]) => {
                const plot = document.getElementById(chart);
                const {x, y} = plot.data.find(curve => curve.name == name);
                const at = y.indexOf(Math.max(...y));
                const {xaxis, yaxis} = plot._fullLayout;
                const frame = plot.getBoundingClientRect();
                return [frame.left + xaxis._offset + xaxis.l2p(x[at]),
                        frame.top + yaxis._offset + yaxis.l2p(y[at])];
            }""",
            [chart, curve],
        )
        return float(x), float(y)

    def shows_color(self, color: str, x: float, y: float) -> bool:
        """Returns whether a pixel within 3 pixels of the place has about that colour."""
        picture = imread(io.BytesIO(self.page.screenshot()), format="png")[..., :3]
        row, column = round(y), round(x)
        near = picture[max(row - 3, 0) : row + 4, max(column - 3, 0) : column + 4]
        return bool((np.abs(near - to_rgb(color)).max(axis=2) < 0.15).any())

    def click_legend(self, chart: str, curve: str) -> None:
        number = CHARTS[chart].index(curve)
        self.page.locator(f"#{chart} .legendtoggle").nth(number).click()
        self.page.wait_for_timeout(_DOUBLE_CLICK_MS)

    def rows(self, table: str) -> list[list[str]]:
        rows = self.page.locator(f"#{table} tr").all()
        return [row.locator("td, th").all_inner_texts() for row in rows]


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[OpenPage]:
    opened = OpenPage(browser, page_file)
    yield opened
    opened.page.close()


def test_the_page_asks_for_nothing_else_and_complains_of_nothing(opened, page_file):
    assert opened.requests == [page_file.as_uri()]
    assert opened.complaints == []
    assert opened.page.locator("h1").inner_text().startswith("python")


@pytest.mark.parametrize("chart", CHARTS)
def test_each_chart_draws_its_curves(opened, chart):
    curves = opened.curves(chart)
    shown = [name for name in CHARTS[chart] if name in curves]
    assert shown == CHARTS[chart]
    for name in shown:
        assert curves[name]["drawn"], name


def test_the_figures_are_those_of_the_program(opened):
    assert opened.curves("memory")["device 0"]["most"] == pytest.approx(128, abs=1)
    assert 90 <= opened.curves("residency")["device 0"]["most"] <= 96
    traffic = opened.curves("traffic")
    assert traffic["to the device"]["most"] == pytest.approx(2 * 128, abs=32)
    assert traffic["evicted"]["most"] > 100
    assert traffic["used over the link"]["most"] == 0
    assert opened.curves("faults")["faults"]["most"] > 100


def test_the_screenshot_shows_the_peak_of_memory_where_the_axes_put_it(opened):
    color = opened.curves("memory")["device 0"]["color"]
    x, y = opened.place_of("memory", "device 0")
    assert opened.shows_color(color, x, y)
    assert not opened.shows_color(color, x - 40, y - 20)
    opened.click_legend("memory", "device 0")
    opened.page.wait_for_function(
        "() => document.getElementById('memory').data.some(curve => curve.visible == 'legendonly')"
    )
    opened.page.mouse.move(5, 5)
    opened.page.wait_for_function("() => !document.querySelector('#memory .hoverlayer *')")
    assert not opened.shows_color(color, x, y)


def test_the_legend_hides_a_curve_and_brings_it_back(opened):
    opened.page.locator("#traffic").scroll_into_view_if_needed()
    for drawn in (False, True):
        opened.click_legend("traffic", "evicted")
        opened.page.wait_for_function(
            "lines => document.querySelectorAll('#traffic .scatterlayer .js-line').length == lines",
            arg=4 if drawn else 3,
        )
    assert all(curve["drawn"] for curve in opened.curves("traffic").values() if curve["most"])


def test_a_place_on_a_curve_tells_its_value(opened):
    x, y = opened.place_of("memory", "device 0")
    opened.page.mouse.move(x + 2, y)
    label = opened.page.locator("#memory .hoverlayer .legendtext").first
    label.wait_for()
    assert "128" in (label.text_content() or "")


def test_a_drag_zooms_and_a_double_click_shows_all_again(opened):
    whole = opened.page.evaluate("document.getElementById('memory')._fullLayout.xaxis.range")
    box = opened.page.locator("#memory .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + box["width"] / 4, middle)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
    opened.page.mouse.up()
    width = "document.getElementById('memory')._fullLayout.xaxis.range.reduce((a, b) => b - a)"
    opened.page.wait_for_function(f"whole => {width} < whole / 3", arg=whole[1] - whole[0])
    opened.page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
    opened.page.wait_for_function(f"whole => {width} > whole * 0.9", arg=whole[1] - whole[0])


def test_the_tables_name_steps_and_the_lines_of_the_program(opened, page_file):
    steps = opened.rows("steps")
    assert [row[0] for row in steps[1:]] == [
        "before the first mark", "step <0>", "step <1>", "end",
    ]  # fmt: skip
    assert steps[3][5] == "128 MiB"
    sites = opened.rows("sites")
    assert sites[1][0] == f"{page_file.with_name('train.py')}:3 load"
    assert sites[1][1:3] == ["4", "128 MiB"]
    assert int(sites[1][4].replace(",", "")) > 100
    blocks = opened.rows("blocks")
    assert [row[1] for row in blocks[1:5]] == ["32 MiB"] * 4
    assert [row[3] for row in blocks[1:5]] == [sites[1][0]] * 4


@pytest.mark.parametrize("width", [1280, 800])
def test_charts_and_tables_fit_the_window(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.wait_for_function(
        "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    for chart in CHARTS:
        box = opened.page.locator(f"#{chart} .main-svg").first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
