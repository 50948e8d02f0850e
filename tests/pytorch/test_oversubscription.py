"""The bound of a step on small examples, what is made of points, and `uvmalloc plan`."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from uvmalloc import plan
from uvmalloc.cli import main
from uvmalloc.errors import CommandError

from bench.oversubscription import live, to_use
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
        # Three blocks in turn with room for two: every second use misses, for Belady too.
        ([kernel(0), kernel(1), kernel(2)], 2, 1.5, 1.5),
        ([kernel(0), kernel(1), kernel(2)], 3, 0, 0),
        ([kernel(0), kernel(1), kernel(2)], 1, 3, 3),
        # What is never written has its copy on the host.
        ([kernel(0, writes=False), kernel(1, writes=False)], 1, 2, 0),
        # Block 0 leaves twice between its writes, and is copied back once.
        (
            [kernel(0), kernel(1), kernel(0, writes=False), kernel(1), kernel(0, writes=False),
             kernel(1)],
            1, 6, 4,
        ),
        # A kernel that needs more than there is can be short of all others only.
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
    # Block 3 and one of the others take turns, out and in.
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
    # Both blocks go both ways in each round.
    assert timed([kernel(0), kernel(1)], 10, 1) == pytest.approx(80)
    reads: list[Kernel | End] = [kernel(0, writes=False), kernel(1, writes=False)]
    assert timed(reads, 10, 1) == pytest.approx(80)


def test_the_bound_of_time_knows_that_a_peak_parts_the_ways() -> None:
    # Eight blocks are written and read again in the opposite order, and then they are dead.
    order = [*range(8), *reversed(range(8))]
    step: list[Kernel | End] = [kernel(block) for block in order]
    step.append(End(dict.fromkeys(range(8), ALL)))
    bound = Bound(step)
    lane = bound.fewest_bytes(2, True, False) / BLOCK * 40
    assert lane == pytest.approx(6 * 40)
    # Six blocks must have left before the middle, and they come back after it.
    assert timed(step, 1, 2) > 1.5 * lane


def test_slots_take_about_equal_time() -> None:
    assert slots_of([1, 1, 1, 1], 2) == [0, 0, 1, 1]
    assert slots_of([3, 1, 1, 1], 2) == [0, 1, 1, 1]
    assert slots_of([0, 0], 4) == [0, 0]


def test_a_repeated_step_frees_what_its_last_round_has_left() -> None:
    # Two blocks of 2 MiB and one of 4 MiB, from before the step. It leaves one of each size.
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


def live_run(workload: str, policy: str, times: float, step_ns: int) -> live.LiveRun:
    counters = dict.fromkeys(("migrated_bytes_to_host", "evicted_bytes"), 0)
    steps = [{"result": "1", "now_ns": step * step_ns, **counters} for step in range(4)]
    return live.LiveRun(workload, policy, times, 100, BLOCK, steps)


def test_live_keys_are_the_least_mean_and_the_least_of_all() -> None:
    measured = []
    for workload, driver_ns in (("v", 400), ("w", 90)):
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


def test_a_device_for_a_part_of_the_pages_has_room_beside_its_context() -> None:
    assert live.capacity_for(63 * BLOCK, 1.0) == 128
    assert live.capacity_for(63 * BLOCK, 1.5) == 2 * 43


def test_a_trace_of_no_use_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.trace"
    file.write_text("nothing")
    code = main(["plan", str(file), "--machine", "h100-pcie5", "--memory", "1GiB"])
    assert code != 0
    assert "no.trace" in capsys.readouterr().err


RESULT = {
    "machine": "m", "footprint_bytes": 3 * BLOCK, "largest_kernel_bytes": BLOCK,
    "all_resident": {"step_ns": 1000000},
    "smallest_memory_bytes": {"off": 3 * BLOCK, "driver": 4 * BLOCK, "lru": BLOCK},
    "by_hand": {
        "offload-weights": {"memory_bytes": 0, "figures": {"failure": "it saves no memory"}},
        "offload-optimizer": {
            "memory_bytes": 2 * BLOCK, "figures": {"step_ns": 1700000},
            "auto": {"step_ns": 1300000}, "planned": {"step_ns": 1250000},
        },
    },
    "points": [
        {
            "memory_bytes": 2 * BLOCK,
            "policies": {
                "off": {"failure": "it does not fit"},
                "planned": {"step_ns": 1500000, "to_device_bytes": BLOCK, "to_host_bytes": 0},
            },
        }
    ],
}  # fmt: skip


def test_the_table_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    plan.show(RESULT, Console(width=200))
    shown = capsys.readouterr().out
    assert "it does not fit" in shown
    assert "1.50 x" in shown
    assert "it saves no memory" in shown
    assert re.search(r"offload-optimizer +4 MiB +1.70 x +1.30 x +1.25 x", shown)
    assert "driver: within 10 % of that from 8 MiB on." in shown
    assert "UVMALLOC_POLICY=lru needs the least" in shown
    assert "device memory alone: within 10 % of that from 6 MiB on." in shown
    assert re.search(r"device memory alone +it does not fit", shown)


def test_no_row_recommends_a_device_without_unified_memory() -> None:
    sizes = dict.fromkeys(("off", "driver", "lru", "auto", "planned"), BLOCK)
    last = plan.summary(RESULT | {"smallest_memory_bytes": sizes})[-1]
    assert last.startswith("UVMALLOC_POLICY=driver needs the least")


def test_the_plan_that_is_told_the_order_is_no_setting() -> None:
    sizes = {"off": 3 * BLOCK, "auto": 2 * BLOCK, "planned": BLOCK}
    last = plan.summary(RESULT | {"smallest_memory_bytes": sizes})[-1]
    assert last.startswith("UVMALLOC_POLICY=auto needs the least")


def test_the_page_has_the_tables_and_the_picture_the_chart(tmp_path, monkeypatch) -> None:
    # The chart library, which scripts/setup has put beside the other packages.
    monkeypatch.syspath_prepend((_CHECKOUT / "build" / "report").read_text().strip())
    plan.write(RESULT, tmp_path / "plan.html", tmp_path / "plan.png")
    page = (tmp_path / "plan.html").read_text()
    assert '<table id="policies">' in page
    assert '<div id="steps"' in page
    cells = ("offload-optimizer", "4 MiB", "1.70 x", "1.30 x", "1.25 x")
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page
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
    assert "ended with the code 3" in capsys.readouterr().err


def test_a_missing_program_is_named(tmp_path) -> None:
    with pytest.raises(CommandError, match="scripts/build makes it"):
        plan.what_if(tmp_path / "none", tmp_path / "trace", "m", [BLOCK], None)


def test_a_single_word_behind_two_dashes_is_a_program(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of = ["plan", "--machine", "h100-pcie5"]
    assert main([*plan_of, "--", "false"]) == 1
    assert "false ended with the code 1: there is no whole step" in capsys.readouterr().err
    assert main([*plan_of, "--", "true"]) == 1
    said = capsys.readouterr().err
    assert "true recorded nothing: it made no allocation that uvmalloc serves" in said
    assert main([*plan_of, "true"]) != 0
    assert "true: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "accepted"), [("--memory=0", "a size from 2 MiB"), ("--step=", "the text of a mark")]
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
    # The optimizer needs most of all, with its state.
    for way in ("offload-optimizer", "offload-activations"):
        assert by_hand[way]["figures"]["failure"] == "it saves no memory"
