"""The lower bound of a step in small examples, its tables and charts, and `uvmalloc plan`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from uvmalloc._cli.main import main
from uvmalloc._trace import plan
from uvmalloc.libraries import Libraries

from bench.ground import hints
from bench.oversubscription import live, offload, to_use
from bench.oversubscription.bound import Bound, End, Kernel, free_what_the_step_leaves
from bench.oversubscription.compare import ByHand, Point, keys_of
from bench.oversubscription.timed_bound import Link, TimedBound, slots_of

_CHECKOUT = Path(__file__).resolve().parents[2]
BLOCK = 2 << 20
ALL = (1 << 512) - 1


def kernel(*blocks: int, writes: bool = True) -> Kernel:
    made = Kernel()
    for block in blocks:
        made.pages[block] = ALL
    made.written = set(blocks) if writes else set()
    return made


@pytest.mark.parametrize(
    ("step", "chunks", "to_device", "to_host"),
    [
        # Three blocks in turn, with room for two: every second use misses, even with Belady's rule.
        ([kernel(0), kernel(1), kernel(2)], 2, 1.5, 1.5),
        ([kernel(0), kernel(1), kernel(2)], 3, 0, 0),
        ([kernel(0), kernel(1), kernel(2)], 1, 3, 3),
        # A block that is never written has its copy on the host.
        ([kernel(0, writes=False), kernel(1, writes=False)], 1, 2, 0),
        # Block 0 leaves twice between its writes, and is copied back once.
        (
            [kernel(0), kernel(1), kernel(0, writes=False), kernel(1), kernel(0, writes=False),
             kernel(1)],
            1, 6, 4,
        ),
        # A kernel that needs more than the device has can push out all other blocks, but no more.
        ([kernel(0, 1, 2), kernel(3)], 2, 3, 3),
    ],
)  # fmt: skip
def test_the_bound_is_the_fewest_bytes(
    step: list[Kernel | End], chunks: int, to_device: float, to_host: float
) -> None:
    bound = Bound(step)
    assert bound.fewest_bytes(chunks, True, False) == pytest.approx(to_device * BLOCK)
    assert bound.fewest_bytes(chunks, False, True) == pytest.approx(to_host * BLOCK)
    both = bound.fewest_bytes(chunks, True, True)
    assert both == pytest.approx((to_device + to_host) * BLOCK)


def test_dead_pages_cost_nothing() -> None:
    half = (1 << 256) - 1
    step: list[Kernel | End] = [kernel(0), End({0: half}), kernel(1), End({1: ALL})]
    bound = Bound(step)
    assert bound.fewest_bytes(1, True, False) == pytest.approx(BLOCK / 2)
    assert bound.fewest_bytes(1, True, True) == pytest.approx(BLOCK)


def test_a_block_that_shrinks_between_its_writes_is_copied_back_as_large_as_it_was_then() -> None:
    half = (1 << 256) - 1
    step: list[Kernel | End] = [
        kernel(0), kernel(1), kernel(0, writes=False), End({0: half}), kernel(1, writes=False),
    ]  # fmt: skip
    bound = Bound(step)
    assert bound.fewest_bytes(2, True, True) == 0
    # Block 0 leaves whole, and again when half of it is dead. Block 1 leaves twice.
    assert bound.fewest_bytes(1, True, False) == pytest.approx(3.5 * BLOCK)
    assert bound.fewest_bytes(1, False, True) == pytest.approx(2 * BLOCK)


def test_blocks_that_are_used_alike_count_together() -> None:
    step: list[Kernel | End] = [kernel(0, 1, 2), kernel(3)]
    bound = Bound(step)
    assert sorted(gap.count for gap in bound.gaps) == [1, 3]
    assert bound.blocks == 4
    # Block 3 and one of the other blocks take turns, out and in.
    assert bound.fewest_bytes(3, True, True) == pytest.approx(4 * BLOCK)


# A block takes 40 ns each way.
LINK = Link(BLOCK / 40, BLOCK / 40)


def timed(step: list[Kernel | End], kernel_ns: float, chunks: int) -> float:
    bound = Bound(step)
    return TimedBound(bound, [kernel_ns] * len(bound.kernels), LINK).least_ns(chunks)


def test_the_bound_of_time_is_that_of_the_kernels_where_copies_fit_beside_them() -> None:
    step: list[Kernel | End] = [kernel(0), kernel(1), kernel(2)]
    assert timed(step, 1000, 2) == pytest.approx(3000)
    assert timed(step, 1, 3) == pytest.approx(3)


def test_the_bound_of_time_is_never_below_a_lane() -> None:
    # Both blocks move in both directions in each round.
    assert timed([kernel(0), kernel(1)], 10, 1) == pytest.approx(80)
    reads: list[Kernel | End] = [kernel(0, writes=False), kernel(1, writes=False)]
    assert timed(reads, 10, 1) == pytest.approx(80)


def test_the_bound_of_time_knows_that_a_peak_parts_the_ways() -> None:
    # Eight blocks are written, then read in the opposite order, and then are dead.
    order = [*range(8), *reversed(range(8))]
    step: list[Kernel | End] = [kernel(block) for block in order]
    step.append(End(dict.fromkeys(range(8), ALL)))
    bound = Bound(step)
    lane = bound.fewest_bytes(2, True, False) / BLOCK * 40
    assert lane == pytest.approx(6 * 40)
    # Six blocks must be evicted before the middle, and return after it.
    assert timed(step, 1, 2) > 1.5 * lane


def test_slots_take_about_equal_time() -> None:
    assert slots_of([1, 1, 1, 1], 2) == [0, 0, 1, 1]
    assert slots_of([3, 1, 1, 1], 2) == [0, 1, 1, 1]
    assert slots_of([0, 0], 4) == [0, 0]


def test_a_repeated_step_frees_what_its_last_round_has_left() -> None:
    # Two blocks of 2 MiB and one of 4 MiB are older than the step, which leaves one of each size.
    first, second, large = End({7: ALL}), End({8: ALL}), End({9: ALL, 10: ALL})
    free_what_the_step_leaves(
        [(3, BLOCK, second), (1, BLOCK, first), (2, 2 * BLOCK, large)],
        [(20, BLOCK, 40 * BLOCK), (21, 2 * BLOCK, 50 * BLOCK)],
    )
    assert first.pages == {40: ALL}, "the one that was allocated first"
    assert second.pages == {8: ALL}, "it has no successor"
    assert large.pages == {50: ALL, 51: ALL}


POINT = Point(
    workload="w", machine="h100-pcie5", times=1.5, memory_bytes=BLOCK, resident_ns=100.0,
    policies={
        "off": {"failure": "it does not fit"},
        "driver": {"step_ns": 400},
        "lru": {"step_ns": 300},
        "auto": {"step_ns": 160},
        "planned": {
            "step_ns": 120, "to_device_bytes": 2 * BLOCK, "to_host_bytes": BLOCK, "faults": 3,
            "hint_calls": 5,
        },
    },
    bound={"moved_bytes": 2.0 * BLOCK, "to_device_bytes": BLOCK, "to_host_bytes": BLOCK},
    to_device_bytes_per_ns=BLOCK / 40, to_host_bytes_per_ns=BLOCK / 40, least_ns=90.0,
    shuffled={"auto": {"step_ns": 408}, "driver": {"step_ns": 400}},
)  # fmt: skip


def test_the_keys_are_the_worst_of_the_points() -> None:
    other = dataclasses.replace(
        POINT, workload="v", policies=POINT.policies | {"driver": {"step_ns": 120}}
    )
    late = dataclasses.replace(POINT, workload="generation", least_ns=110.0)
    hand = ByHand("v", "m", "offload-weights", BLOCK, 100.0, 330.0, 110.0, 105.0)
    keys = keys_of([POINT, other], [hand, dataclasses.replace(hand, step_ns=220.0)])
    assert keys["speedup_over_offload"] == pytest.approx(2)
    assert keys["step_over_timed_bound"] == pytest.approx(1.2)
    assert keys["inference_d2h_bytes"] is None
    assert keys_of([late], [])["inference_d2h_bytes"] == BLOCK
    assert keys_of([late], [])["hidden_share"] is None, "the bound does not allow it"
    assert keys_of([late], [])["speedup_over_offload"] is None
    assert keys["speedup_over_driver"] == pytest.approx((400 / 160 * 120 / 160) ** 0.5)
    assert keys["planned_speedup_over_driver"] == pytest.approx((400 / 120) ** 0.5)
    assert keys["least_speedup"] == pytest.approx(120 / 160)
    assert keys["bytes_over_optimum"] == pytest.approx(1.5)
    assert keys["step_over_bound"] == pytest.approx(1.2)
    assert keys["hidden_share"] == pytest.approx(1 - 20 / 80)
    assert keys["steady_faults"] == 3
    assert keys["unlearnable_ratio"] == pytest.approx(1.02)
    assert keys["at_capacity"] is None
    assert keys["points_that_end_early"] == 0


def test_a_point_that_does_not_run_is_counted() -> None:
    for policy in ("auto", "planned"):
        failed = dataclasses.replace(
            POINT, policies=POINT.policies | {policy: {"failure": "no memory"}}
        )
        keys = keys_of([failed], [])
        assert keys["points_that_end_early"] == 1
        assert keys["speedup_over_driver"] is None


def rounds(*times_ns: int, copied_bytes: int = BLOCK) -> list[dict[str, float]]:
    return [{"sum": 1.0, "time_ns": each, "copied_bytes": copied_bytes} for each in times_ns]


def test_the_slowest_round_of_a_move_and_a_use_counts() -> None:
    assert to_use.ratio_of(rounds(110, 90), rounds(100, 100), BLOCK) == pytest.approx(1.1)
    with pytest.raises(RuntimeError, match="touches by the CPU are not tracked"):
        to_use.ratio_of(rounds(110, copied_bytes=0), rounds(100), BLOCK)
    with pytest.raises(RuntimeError, match="different bytes"):
        to_use.ratio_of(rounds(110), [rounds(100)[0] | {"sum": 2.0}], BLOCK)


def live_run(
    workload: str, policy: str, times: float, step_ns: int, **of_a_step: int
) -> live.LiveRun:
    names = (
        "migrated_bytes_to_device", "migrated_bytes_to_host", "evicted_bytes",
        "remote_access_bytes", "faults_device", "used_bytes",
    )  # fmt: skip
    figures = {"now_ns": step_ns, **dict.fromkeys(names, 0), **of_a_step}
    steps = [
        {"result": "1", **{name: step * value for name, value in figures.items()}}
        for step in range(5)
    ]
    return live.LiveRun(workload, policy, times, 100, BLOCK, steps)


def test_live_keys_are_the_least_mean_and_the_least_of_all() -> None:
    measured = []
    for workload, driver_ns in (("gpt", 400), ("cnn", 90)):
        measured.append(live_run(workload, "auto", 0, 50))
        for times in (1.25, 2.0):
            measured.append(live_run(workload, "driver", times, driver_ns))
            measured.append(live_run(workload, "auto", times, 100 if times == 2.0 else 50))
    cases = live.cases_of(measured)
    keys = live.keys_of(cases)
    assert keys["live_speedups"]["1.25"] == pytest.approx((8 * 1.8) ** 0.5)
    assert keys["live_speedup_over_driver"] == pytest.approx((4 * 0.9) ** 0.5)
    assert keys["live_least_speedup"] == pytest.approx(0.9)
    assert keys["live_results_equal"]
    assert cases[0].slowdown("driver") == pytest.approx(8)
    measured[-1].steps[2]["result"] = "2"
    assert not live.keys_of(live.cases_of(measured))["live_results_equal"]


def test_auto_is_compared_with_lru_on_steps_that_can_be_learned_and_on_all() -> None:
    measured = []
    for program, auto_ns in (("gpt", 50), ("lengths", 200)):
        measured += [
            live_run(program, "auto", 0, 10),
            live_run(program, "lru", 2.0, 100),
            live_run(program, "auto", 2.0, auto_ns, faults_device=auto_ns // 50),
        ]
    keys = live.keys_of(live.cases_of(measured))
    assert keys["auto_over_lru"] == pytest.approx({"learnable": 0.5, "all": 1.0})
    assert keys["auto_over_lru_worst"] == pytest.approx(2)
    assert keys["auto_over_lru_worst_case"] == "lengths at 2 x"
    assert keys["steady_faults_live"] == 1, "of gpt alone"
    assert keys["expert_bytes_ratio"] is None
    assert "live_speedup_over_driver" not in keys, "driver was not measured"


def test_bytes_over_the_link_are_divided_by_those_that_the_program_says_it_used() -> None:
    moved = {"migrated_bytes_to_device": 30, "evicted_bytes": 10, "remote_access_bytes": 20}
    measured = [
        live_run("experts", "auto", 0, 1),
        live_run("experts", "auto", 2.0, 1, **moved, used_bytes=20),
    ]
    assert live.keys_of(live.cases_of(measured))["expert_bytes_ratio"] == pytest.approx(3)


def test_offloaded_weights_are_compared_only_with_equal_results() -> None:
    ours, offloaded = live_run("dense", "auto", 0, 50), live_run("dense", "native", 0, 100)
    assert offload.speedup(offloaded, ours) == pytest.approx(2)
    offloaded.steps[-1]["result"] = "2"
    with pytest.raises(RuntimeError, match="dense has other results"):
        offload.speedup(offloaded, ours)


def test_hint_keys_are_the_worst_ratios_of_cases_with_hints() -> None:
    def run(step_ns: int, calls: int) -> live.LiveRun:
        made = live_run("cnn", "auto", 1.5, step_ns)
        for number, step in enumerate(made.steps):
            step |= {"hint_calls": number * calls, "order_calls": 0}
        return made

    cases = [
        hints.Case("a", run(90, 20), run(100, 100)),
        hints.Case("b", run(101, 10), run(100, 100)),
        hints.Case("c", run(100, 0), run(100, 0)),
    ]
    keys = hints.keys_of(cases)
    assert keys["hint_calls_ratio"] == pytest.approx(0.2)
    assert keys["hint_step_time_ratio"] == pytest.approx(1.01)
    assert keys["hint_results_equal"]
    assert keys["hints"][2]["calls_ratio"] is None
    assert [target.met for target in hints.targets(keys)] == [True, False]
    cases[0].single.steps[1]["result"] = "2"
    assert not hints.keys_of(cases)["hint_results_equal"]


def test_a_device_for_a_part_of_the_pages_has_room_beside_its_context() -> None:
    assert live.capacity_for(63 * BLOCK, 1.0) == 128
    assert live.capacity_for(63 * BLOCK, 1.5) == 2 * 43


def test_a_trace_of_no_use_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.trace"
    file.write_text("nothing")
    code = main(["plan", str(file), "--machine", "h100-pcie5", "--memory", "1GiB"])
    assert code != 0
    assert "no.trace" in capsys.readouterr().err


def figures(ratio: float) -> dict[str, int]:
    return {
        "step_ns": round(ratio * 1000000), "to_device_bytes": BLOCK, "to_host_bytes": 3 * BLOCK,
    }  # fmt: skip


NO_ROOM = {"failure": "it does not fit"}


def result_of(*points: tuple[int, dict[str, float]], with_sizes: bool = False) -> dict[str, Any]:
    """Returns a result by sizes in blocks and ratios; a policy without a ratio does not fit."""
    names = ("off", "driver", "lru", "auto", "planned")
    return {
        "machine": "m", "program": "python train.py", "step_found_by": "marks",
        "footprint_bytes": 3 * BLOCK, "largest_kernel_bytes": BLOCK, "kernel_ns": [1] * 7,
        "all_resident": {"step_ns": 1000000},
        "smallest_memory_bytes": dict(zip(names, (6 * BLOCK, 4 * BLOCK, 5 * BLOCK, 5 * BLOCK,
                                                  BLOCK), strict=True)),
        "by_hand": {
            "offload-weights": {"memory_bytes": 0, "figures": {"failure": "it saves no memory"}},
            "offload-optimizer": {
                "memory_bytes": 2 * BLOCK, "figures": figures(1.7), "auto": figures(1.3),
                "planned": figures(1.25),
            },
        },
        "asked_memory_bytes": [blocks * BLOCK for blocks, _ in points] if with_sizes else [],
        "points": [
            {
                "memory_bytes": blocks * BLOCK,
                "policies": {
                    name: figures(ratios[name]) if name in ratios else NO_ROOM for name in names
                },
            }
            for blocks, ratios in points
        ],
    }  # fmt: skip


FULL = dict.fromkeys(("off", "driver", "lru", "auto", "planned"), 1.0)
RESULT = result_of((2, {"planned": 1.5, "driver": 34.0, "lru": 2.4, "auto": 2.2}), (6, FULL))


@pytest.mark.parametrize("width", [80, 200])
def test_each_memory_is_a_line(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    plan.show(RESULT, Console(width=width))
    shown = capsys.readouterr().out
    assert re.search(r"\n 4 MiB +it does not fit +34.00 x +2.40 x +2.20 x +1.50 x *\n", shown)
    assert re.search(r"\n 4 MiB +8 MiB +8 MiB +8 MiB +8 MiB *\n", shown), "both ways"
    assert re.search(r"offload-weights +it saves no memory *\n", shown)
    assert re.search(r"offload-optimizer +4 MiB +1.70 x +1.30 x +1.25 x", shown)
    assert "driver: at most 1.1 x from 8 MiB on." in shown
    assert "device memory only: at most 1.1 x from 12 MiB on." in shown
    assert shown.count("\n") < 40


def test_the_last_line_says_what_to_set_how_slow_it_is_and_how_much_is_enough() -> None:
    assert plan.summary(RESULT)[-1] == (
        "UVMALLOC_POLICY=auto, the default, is the fastest setting. Against all memory resident a "
        "step takes 1.00 x with 12 MiB, 2.20 x with 4 MiB. From 10 MiB on it takes at most 1.1 x."
    )


def test_another_setting_is_named_where_it_is_faster() -> None:
    slower = {"driver": 34.0, "lru": 1.5, "auto": 2.2}
    last = plan.summary(result_of((2, slower), (6, FULL)))[-1]
    assert last.startswith("UVMALLOC_POLICY=lru is the fastest setting. ")
    assert "1.50 x with 4 MiB" in last
    alike = {"driver": 34.0, "lru": 2.15, "auto": 2.2}
    last = plan.summary(result_of((2, alike), (6, FULL)))[-1]
    assert last.startswith("UVMALLOC_POLICY=auto, "), "a small gain is no reason to set anything"


def test_each_requested_memory_has_its_answer() -> None:
    found = result_of((2, {"driver": 34.0, "lru": 1.5, "auto": 2.2}), (6, FULL), with_sizes=True)
    assert plan.summary(found)[-2:] == [
        "The memory is enough, and nothing has to be set. Against all memory resident a step takes "
        "1.00 x with 12 MiB.",
        "UVMALLOC_POLICY=lru is the fastest setting. Against all memory resident a step takes "
        "1.50 x with 4 MiB. From 10 MiB on it takes at most 1.1 x.",
    ]
    fits = result_of((6, {"driver": 2.0, "lru": 1.05, "auto": 1.2}), with_sizes=True)
    assert plan.summary(fits)[-1].startswith("The memory is enough with UVMALLOC_POLICY=lru. ")
    none = result_of((1, {}), with_sizes=True)
    assert plan.summary(none)[-1].startswith("With 2 MiB the step does not run under any setting.")


def test_a_memory_at_which_the_step_is_slow_is_not_enough() -> None:
    slow_above = result_of((5, {"auto": 1.0}), (6, {"auto": 1.4}), (7, {"auto": 1.1}))
    assert plan.summary(slow_above)[-1].endswith("From 14 MiB on it takes at most 1.1 x.")


def test_what_no_program_can_set_is_never_recommended() -> None:
    ratios = {"off": 1.0, "planned": 1.0, "auto": 3.0, "lru": 3.0, "driver": 3.0}
    assert "=auto, the default, is the fastest" in plan.summary(result_of((2, ratios)))[-1]


def test_a_step_without_marks_is_described() -> None:
    assert not any("marks" in line for line in plan.summary(RESULT))
    lines = plan.summary(RESULT | {"step_found_by": "repetition"})
    assert lines[1].startswith("The trace has no marks: the step is the 7 kernels that the program")


def test_the_page_has_the_tables_and_the_picture_the_chart(tmp_path, monkeypatch) -> None:
    # scripts/setup has put the chart library beside the other packages.
    monkeypatch.syspath_prepend((_CHECKOUT / "build" / "report").read_text().strip())
    plan.write(RESULT, tmp_path / "plan.html", tmp_path / "plan.png")
    page = (tmp_path / "plan.html").read_text()
    assert '<table id="policies">' in page
    assert '<div id="steps"' in page
    cells = ("offload-optimizer", "4 MiB", "1.70 x", "1.30 x", "1.25 x")
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "<h1>python train.py: a step with less memory</h1>" in page
    assert "python train.py: time of a step on m, against all memory resident" in page
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


PROGRAM = """
import torch, uvmalloc
x = torch.zeros(1 << 20, device="cuda")
for step in range(3):
    uvmalloc.mark(f"step {step}")
    x += 1
    x.sum().item()
uvmalloc.mark("end")
"""


def test_a_program_is_recorded_and_planned(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--machine", "h100-pcie5", "--json", "--step", "step 1", "--"]
    assert main([*command, sys.executable, "-c", PROGRAM]) == 0
    result = json.loads(capsys.readouterr().out)
    sizes = [point["memory_bytes"] for point in result["points"]]
    assert sizes == [BLOCK, 2 * BLOCK]
    assert result["footprint_bytes"] >= 4 << 20
    assert main([*command, sys.executable, "-c", "raise SystemExit(3)"]) != 0
    assert "ended with exit code 3" in capsys.readouterr().err


def test_a_step_without_marks_is_found_by_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    program = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
print("begins")
for step in range(4):
    (model(torch.randn(64, 256, device="cuda")) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    command = ["plan", "--memory", "1GiB", "--json", "--"]
    run = [sys.executable, "-m", "uvmalloc", *command, sys.executable, "-c", program]
    finished = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert "begins" in finished.stderr, "the program's output is not lost"
    assert (found["step_found_by"], found["machine"]) == ("repetition", "h100-pcie5")
    marked = program.replace("step in range(4):", 'step in range(4):\n    uvmalloc.mark("step")')
    marked = marked.replace("import torch", "import torch, uvmalloc") + "uvmalloc.mark('end')\n"
    assert main([*command, sys.executable, "-c", marked]) == 0
    by_marks = json.loads(capsys.readouterr().out)
    assert by_marks["step_found_by"] == "marks"
    assert len(found["kernel_ns"]) == len(by_marks["kernel_ns"]) > 16
    assert found["footprint_bytes"] == by_marks["footprint_bytes"]


NOT_RUN = (sys.executable, "-c", "open('ran', 'w')")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--machine", "gb10"), "the machine has no memory of its own to plan for"),
        (("--machine", "bad.toml"), "--machine is 'bad.toml'; accepted: a file that describes"),
        (("--html", "no/page.html"), "--html is 'no/page.html'; accepted: a file in a folder"),
        (("--html", "page.html"), "--html needs plotly: pip install plotly"),
        (("--png", "page.png"), "--png needs matplotlib: pip install matplotlib"),
        (("--memory", "1KiB"), "--memory is '1KiB'; accepted: a size from 2 MiB"),
    ],
)
def test_nothing_is_recorded_for_a_plan_that_cannot_be_made(
    options, said, tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[memory]\nkind = 'soup'\n")
    installed = importlib.util.find_spec
    missing = ("plotly", "matplotlib")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else installed(name)
    )
    assert main(["plan", "--machine", "h100-pcie5", *options, "--", *NOT_RUN]) != 0
    assert said in capsys.readouterr().err
    assert not Path("ran").exists()


def test_a_missing_program_is_named_before_anything_runs(
    libraries: Libraries,
    other_build: Path,
    tmp_path,
    monkeypatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = other_build / "lib"
    folder.mkdir()
    for file in libraries.folder.iterdir():
        (folder / file.name).symlink_to(file)
    monkeypatch.setenv("UVMALLOC_LIB_DIR", str(folder))
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--machine", "h100-pcie5", "--", *NOT_RUN]) == 3
    assert f"uvmalloc_plan not found in {other_build}/bin" in capsys.readouterr().err
    assert not Path("ran").exists()


def test_what_was_recorded_in_vain_is_kept(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    of_program = ["--machine", "h100-pcie5", "--json"]
    program = ("--", sys.executable, "-c", PROGRAM)
    assert main(["plan", *of_program, "--step", "step 7", *program]) == 1
    said = capsys.readouterr().err
    assert "no step begins at the mark 'step 7' and ends at another mark; the trace has the" in said
    assert "'step 0', 'step 1', 'step 2', 'end'" in said
    [kept] = re.findall(r"the recorded trace is kept: (\S+)\. ", said)
    assert main(["plan", kept, *of_program, "--step", "step 1"]) == 0
    assert json.loads(capsys.readouterr().out)["footprint_bytes"] >= 4 << 20
    Path(kept).unlink()
    Path(kept).parent.rmdir()
    assert main(["plan", *of_program, "--step", "step 1", *program]) == 0
    failing = (*program[:-1], PROGRAM + "raise SystemExit(3)")
    assert main(["plan", *of_program, *failing]) == 1
    assert "ended with exit code 3" in capsys.readouterr().err
    assert list(tmp_path.glob("uvmalloc-plan-*")) == []


def test_a_single_word_behind_two_dashes_is_a_program(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of = ["plan", "--machine", "h100-pcie5"]
    assert main([*plan_of, "--", "false"]) == 1
    said = capsys.readouterr().err
    assert "false ended with exit code 1 before the trace had a complete step" in said
    assert main([*plan_of, "--", "true"]) == 1
    said = capsys.readouterr().err
    assert "true recorded nothing: it made no allocation that uvmalloc serves" in said
    assert main([*plan_of, "true"]) != 0
    assert "true: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "accepted"), [("--memory=0", "a size from 2 MiB"), ("--step=", "a mark")]
)
def test_a_refused_option_of_the_plan_has_its_own_name(
    option, accepted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "none.trace", "--machine", "h100-pcie5", option]) == 2
    name, value = option.split("=")
    assert f"{name} is '{value}'; accepted: {accepted}" in capsys.readouterr().err


SMALL_MODEL = """
import torch, uvmalloc
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    uvmalloc.mark(f"step {step}")
    loss = (model(torch.randn(256, 1024, device="cuda")) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
uvmalloc.mark("end")
"""


@pytest.mark.slow
def test_a_small_model_has_state_and_activations_that_move_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["plan", "--machine", "h100-pcie5", "--memory", "1GiB", "--json", "--"]
    assert main([*command, sys.executable, "-c", SMALL_MODEL]) == 0
    by_hand = json.loads(capsys.readouterr().out)["by_hand"]
    # The step of the optimizer needs the most memory, including its state.
    for way in ("offload-optimizer", "offload-activations"):
        assert by_hand[way]["figures"]["failure"] == "it saves no memory"
