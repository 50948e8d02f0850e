"""`uvmalloc trace html` and `trace png`: a page and a picture with the figures of a trace and its
replay.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc._cli.main import main
from uvmalloc._trace.pages import memory_chart
from uvmalloc._trace.reader import read_trace

from tests.pytorch.conftest import Simulate

PROGRAM = """
import torch, uvmalloc
weights = [torch.zeros(8 << 20, device='cuda') for _ in range(4)]
for step in range(2):
    uvmalloc.mark(f'step <{step}>')
    for weight in weights:
        weight.add_(1)
uvmalloc.mark('end')
"""
CHARTS = ("memory", "residency", "traffic", "faults")
_CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trace_file(simulate: Simulate, tmp_path: Path) -> Path:
    file = tmp_path / "run.trace"
    simulate(PROGRAM, environment={"UVMALLOC_TRACE": str(file)}).check()
    return file


@pytest.fixture
def uvmalloc(clean_environment):
    """Returns a function that runs a command, with the packages from scripts/setup."""
    packages = (_CHECKOUT / "build" / "report").read_text().strip()

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "uvmalloc", *map(str, arguments)],
            env={**clean_environment, "PYTHONPATH": packages},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return run


def cells(page: str, table: str) -> list[list[str]]:
    body = re.search(rf'<table id="{table}">(.*?)</table>', page, re.DOTALL)
    assert body is not None
    return [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", body.group(1))
    ]


def test_the_page_holds_charts_steps_and_allocations_and_fetches_nothing(
    uvmalloc, trace_file, tmp_path
):
    page_file = tmp_path / "page.html"
    finished = uvmalloc("trace", "html", trace_file, "-o", page_file, "--machine", "h100-pcie5",
                        "--capacity", "96MiB", "--hints", "none")  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    page = page_file.read_text()
    heading = re.search(r"<h1>(.*?)</h1>", page)
    assert heading is not None
    assert "python" in heading.group(1), "the program's name"
    for chart in CHARTS:
        assert f'id="{chart}"' in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    steps = cells(page, "steps")
    assert [row[0] for row in steps[1:]] == [
        "before the first mark", "step &lt;0&gt;", "step &lt;1&gt;", "end",
    ]  # fmt: skip
    assert steps[3][5] == "128 MiB"  # to the device in the second step
    blocks = cells(page, "blocks")
    assert [row[1] for row in blocks[1:5]] == ["32 MiB"] * 4


def test_a_page_without_its_packages_is_refused_in_one_line(
    trace_file, tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "plotly" else installed(name)
    )
    assert main(["trace", "html", str(trace_file), "-o", str(tmp_path / "page.html")]) != 0
    assert "uvmalloc trace html needs plotly: pip install plotly" in capsys.readouterr().err
    assert main(["trace", "html", str(trace_file), "-o", str(tmp_path / "no" / "page.html")]) != 0
    assert (
        f"--out is '{tmp_path / 'no' / 'page.html'}'; accepted: a file" in capsys.readouterr().err
    )


def test_without_an_option_the_page_lies_beside_the_trace(uvmalloc, trace_file):
    finished = uvmalloc("trace", "html", trace_file)
    assert finished.returncode == 0, finished.stderr
    assert trace_file.with_name("run.trace.html").stat().st_size > 1 << 20  # with the library


def test_the_picture_is_a_png(uvmalloc, trace_file, tmp_path):
    picture = tmp_path / "charts.png"
    finished = uvmalloc("trace", "png", trace_file, "-o", picture)
    assert finished.returncode == 0, finished.stderr
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width > 800
    assert height > 1000
    assert not trace_file.with_name("run.trace.html").exists()


def test_memory_over_time_reaches_the_peak(trace_file):
    chart = memory_chart(read_trace(trace_file))
    device = next(curve for curve in chart.curves if curve.name == "device 0")
    assert max(device.y) == pytest.approx(128, abs=1)
    assert [text for _, text in chart.marks] == ["step <0>", "step <1>", "end"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--machine", "none"], "--machine is 'none'; accepted: gb10"),
        (["--capacity", "0"], "--capacity is '0'; accepted"),
        (["--hints", "all"], "--hints is 'all'; accepted: none, recorded"),
    ],
)
def test_options_that_mean_nothing_are_refused(uvmalloc, trace_file, options, said):
    finished = uvmalloc("trace", "html", trace_file, *options)
    assert finished.returncode == 2
    assert said in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_the_old_form_warns_and_goes_on_working(uvmalloc, trace_file, tmp_path):
    picture = tmp_path / "old.png"
    finished = uvmalloc("report", trace_file, "--png", picture)
    assert finished.returncode == 0
    warning, wrote = finished.stderr.splitlines()
    assert warning == (
        "uvmalloc: warning: the next minor version will not have `uvmalloc report TRACE`; use "
        "uvmalloc trace html TRACE, or trace png TRACE"
    )
    assert wrote == f"uvmalloc: wrote {picture}"
    assert picture.is_file()


@pytest.mark.parametrize(
    ("options", "name"), [(("--png", "out.png"), "--png"), (("--machine", "gb10"), "--machine")]
)
def test_a_report_is_not_drawn(uvmalloc, tmp_path, options, name):
    file = tmp_path / "report.json"
    file.write_text('{"active": false}')
    finished = uvmalloc("report", file, *options)
    assert finished.returncode == 2
    assert f"{name} is '{options[1]}'; accepted: nothing for a report" in finished.stderr
