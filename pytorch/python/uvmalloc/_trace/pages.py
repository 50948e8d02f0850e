"""Draws a trace: memory over time and, if the trace holds kernels, their replay on a machine.

A page is one file that includes the chart library and fetches nothing. uvmalloc_machine_replay does
the replay (docs/reference/simulator.md). Importing this module imports numpy.
"""

from __future__ import annotations

import html
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvmalloc._cli.files import write_own
from uvmalloc._cli.tables import one_line
from uvmalloc._trace.export import LiveBytes
from uvmalloc._trace.reader import ALLOCATE, FREE, KERNEL, MARK, Trace
from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size

_MIB = 1 << 20
_MOST_POINTS = 4000  # points of a curve, at most
_BLOCKS = 40
_LONGEST_PROGRAM = 60  # characters in a title
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;"
    "color:#1b2733}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;"
    "text-align:right;border-bottom:1px solid #dde3ea;white-space:nowrap}th{font-weight:600}"
    ".text{text-align:left;white-space:normal;overflow-wrap:anywhere}"
)


@dataclass(frozen=True)
class Curve:
    name: str
    x: list[float]
    y: list[float]
    is_step: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture. `marks` are vertical lines."""

    key: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    marks: list[tuple[float, str]]


@dataclass(frozen=True)
class Replayed:
    machine: str
    result: dict[str, Any]


def replay(
    program: Path, trace: Path, machine: str | None, capacity: int | None, hints: str
) -> Replayed:
    """Replays the trace on the simulated machine."""
    command = [str(program), str(trace), "--hints", hints, "--blocks", str(_BLOCKS)]
    command += ["--samples", "1"]
    if machine is not None:
        command += ["--machine", machine]
    if capacity is not None:
        command += ["--capacity", str(capacity)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode not in (0, 1):
        raise CommandError(finished.stderr.strip().removeprefix("uvmalloc_machine_replay: "))
    return Replayed(machine or "ideal machine", json.loads(finished.stdout))


def has_kernels(trace: Trace) -> bool:
    return bool((trace.events["kind"] == KERNEL).any())


def _thinned(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Reduces a curve to _MOST_POINTS: the highest point of each stretch, so no peak is lost."""
    stretch = -(-len(x) // _MOST_POINTS)
    if stretch <= 1:
        return x, y
    kept = [
        max(range(first, min(first + stretch, len(x))), key=y.__getitem__)
        for first in range(0, len(x), stretch)
    ]
    if kept[-1] != len(x) - 1:
        kept.append(len(x) - 1)
    return [x[i] for i in kept], [y[i] for i in kept]


def title_of(program: str) -> str:
    return one_line(program or "program", _LONGEST_PROGRAM)


def memory_chart(trace: Trace) -> Chart:
    """Returns live bytes of each kind of memory, and of each device, over the recorded time."""
    live = LiveBytes()
    points: dict[str, tuple[list[float], list[float]]] = {}
    kinds = trace.events["kind"]
    chosen = (kinds == ALLOCATE) | (kinds == FREE)
    times = (trace.times_ns[chosen] / 1e6).tolist()
    for time_ms, event in zip(times, trace.events[chosen].tolist(), strict=True):
        for pool in live.change(event):
            x, y = points.setdefault(pool, ([], []))
            x.append(time_ms)
            y.append(live.bytes[pool] / _MIB)
    curves = [Curve(pool, *_thinned(x, y), is_step=True) for pool, (x, y) in sorted(points.items())]
    marks = [
        (float(time_ns) / 1e6, trace.text(MARK, int(extra)))
        for time_ns, extra in zip(
            trace.times_ns[kinds == MARK], trace.events["extra"][kinds == MARK], strict=True
        )
    ]
    title = f"{title_of(trace.program)}: memory in blocks"
    return Chart("memory", title, "recorded time, ms", "MiB", curves, marks)


def _step_marks(result: dict[str, Any]) -> list[tuple[float, str]]:
    marks, at_ns = [], 0
    for step in result["steps"]:
        if step["mark"]:
            marks.append((at_ns / 1e6, step["mark"]))
        at_ns += step["duration_ns"]
    return marks


def machine_charts(program: str, replayed: Replayed) -> Iterator[Chart]:
    samples = replayed.result.get("samples", [])
    marks = _step_marks(replayed.result)
    times = [sample["at_ns"] / 1e6 for sample in samples]

    def curve(name: str, values: Sequence[float]) -> Curve:
        return Curve(name, *_thinned(times, list(values)))

    devices = len(samples[0]["resident_bytes"]) if samples else 0
    on = f"on {replayed.machine}"
    yield Chart(
        "residency", f"{program}: memory of devices that managed memory holds, {on}",
        "virtual time, ms", "MiB",
        [
            curve(f"device {device}", [s["resident_bytes"][device] / _MIB for s in samples])
            for device in range(devices)
        ],
        marks,
    )  # fmt: skip
    yield Chart(
        "traffic", f"{program}: bytes moved so far, {on}", "virtual time, ms", "MiB",
        [
            curve(name, [s[key] / _MIB for s in samples])
            for name, key in (
                ("to the device", "migrated_bytes_to_device"),
                ("to the host", "migrated_bytes_to_host"),
                ("evicted", "evicted_bytes"),
                ("used over the link", "remote_access_bytes"),
            )
        ],
        marks,
    )  # fmt: skip
    yield Chart(
        "faults", f"{program}: faults of devices so far, {on}", "virtual time, ms", "faults",
        [curve("faults", [s["faults_device"] for s in samples])], marks,
    )  # fmt: skip


def _figure(chart: Chart) -> Any:
    import plotly.graph_objects as graphs

    figure = graphs.Figure()
    for curve in chart.curves:
        shape = "hv" if curve.is_step else "linear"
        figure.add_scatter(x=curve.x, y=curve.y, name=curve.name, mode="lines", line_shape=shape)
    if len(chart.marks) <= 60:
        for at, text in chart.marks:
            figure.add_vline(
                x=at, line_width=1, line_dash="dot", annotation_text=html.escape(text),
                annotation_font_size=9, annotation_textangle=-90,
            )  # fmt: skip
    figure.update_layout(
        title=chart.title, xaxis_title=chart.x_label, yaxis_title=chart.y_label,
        template="plotly_white", height=420, hovermode="x unified", showlegend=True,
        margin_r=170,  # wider than any legend, so that the axes of all charts end together
    )  # fmt: skip
    return figure


def table_html(
    head: Sequence[str], rows: Sequence[Sequence[str]], key: str, texts: Sequence[str] = ()
) -> str:
    """`texts` are the columns that hold text instead of numbers."""
    classes = [' class="text"' if name in texts else "" for name in head]

    def line(tag: str, cells: Sequence[str]) -> str:
        columns = zip(classes, cells, strict=True)
        return (
            "<tr>"
            + "".join(f"<{tag}{column}>{html.escape(cell)}</{tag}>" for column, cell in columns)
            + "</tr>"
        )

    body = "".join(line("td", row) for row in rows)
    return f'<table id="{key}">{line("th", head)}{body}</table>'


def step_rows(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            "before the first mark" if number == 0 else step["mark"] or '""',
            f"{step['duration_ns'] / 1e6:,.3f}",
            f"{step['kernel_ns'] / 1e6:,.3f}",
            f"{step['kernels']:,}",
            f"{step['faults_device']:,}",
            format_size(step["migrated_bytes_to_device"]),
            format_size(step["evicted_bytes"] + step["migrated_bytes_to_host"]),
        ]
        for number, step in enumerate(result["steps"])
    ]


_NO_SITE = "not in the trace"


def block_rows(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            str(block["block"]),
            format_size(block["size_bytes"]),
            block["allocated_in"] or "before the first mark",
            *([block["site"] or _NO_SITE] if "site" in block else ()),
            f"{block['touches']:,}",
            f"{block['faults']:,}",
            format_size(block["bytes_to_device"]),
            format_size(block["evicted_bytes"]),
        ]
        for block in result["blocks"]
    ]


def site_rows(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            site["site"] or _NO_SITE,
            f"{site['allocations']:,}",
            format_size(site["allocated_bytes"]),
            f"{site['touches']:,}",
            f"{site['faults']:,}",
            format_size(site["bytes_to_device"]),
            format_size(site["evicted_bytes"]),
        ]
        for site in result.get("call_sites", ())
    ]


def _machine_parts(replayed: Replayed) -> Iterator[str]:
    """Yields the tables of a replay."""
    result = replayed.result
    total_ms = result["duration_ns"] / 1e6
    failure = result.get("failure")
    said = f" The run ended early: {failure}." if failure else ""
    yield (
        f"<h2>Steps on {html.escape(replayed.machine)}</h2>"
        f"<p>{total_ms:,.3f} ms of virtual time.{html.escape(said)}</p>"
    )
    yield table_html(
        ("step", "ms", "ms of kernels", "kernels", "faults", "to the device", "to the host"),
        step_rows(result), "steps", ("step",),
    )  # fmt: skip
    sites = site_rows(result)
    moved = ("touches", "faults", "to the device", "evicted for it")
    if sites:
        yield "<h2>Call sites whose allocations move most</h2>"
        head = ("call site", "allocations", "allocated", *moved)
        yield table_html(head, sites, "sites", ("call site",))
    yield "<h2>Allocations whose touches move most</h2>"
    called = ("call site",) if sites else ()
    head = ("allocation", "size", "made in", *called, *moved)
    yield table_html(head, block_rows(result), "blocks", ("made in", "call site"))


def chart_parts(charts: Sequence[Chart]) -> list[str]:
    """Returns the charts as HTML for a page. The first chart includes the chart library."""
    from plotly.io import to_html

    return [
        to_html(
            _figure(chart), full_html=False, include_plotlyjs=number == 0, div_id=chart.key,
            config={"displaylogo": False, "responsive": True},
        )
        for number, chart in enumerate(charts)
    ]  # fmt: skip


def write_page(title: str, heading: str, parts: Sequence[str], out: Path) -> None:
    """Writes a page. The title and the heading are text, the parts are HTML."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(heading)}</h1>{''.join(parts)}</body></html>\n"
    )
    write_own(out, page.encode())


def write_html(trace: Trace, replayed: Replayed | None, out: Path) -> None:
    """Writes one page with all charts and tables."""
    program = title_of(trace.program)
    parts = chart_parts(_charts(trace, replayed))
    if replayed is None:
        parts.append("<p>The trace holds no kernels: what moves is not known.</p>")
    else:
        parts.extend(_machine_parts(replayed))
    write_page(f"{program}: memory", f"{program}, process {trace.process}", parts, out)


def write_png(trace: Trace, replayed: Replayed | None, out: Path) -> None:
    draw_png(_charts(trace, replayed), out)


def _charts(trace: Trace, replayed: Replayed | None) -> list[Chart]:
    of_machine = machine_charts(title_of(trace.program), replayed) if replayed else ()
    return [memory_chart(trace), *of_machine]


def draw_png(charts: Sequence[Chart], out: Path) -> None:
    """Draws all charts, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plots

    figure, axes = plots.subplots(
        len(charts), figsize=(10, 3.2 * len(charts)), layout="constrained", squeeze=False
    )
    for chart, axis in zip(charts, axes[:, 0], strict=True):
        for curve in chart.curves:
            style = "steps-post" if curve.is_step else "default"
            axis.plot(curve.x, curve.y, label=curve.name, drawstyle=style, linewidth=1)
        for at, _ in chart.marks:
            axis.axvline(at, color="0.8", linewidth=0.6, zorder=0)
        axis.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if chart.curves:
            axis.legend(fontsize=8)
    figure.savefig(out, dpi=110, format="png")
    plots.close(figure)
