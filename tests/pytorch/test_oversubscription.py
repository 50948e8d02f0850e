"""The bound of a step on small examples, what is made of points, and `uvmalloc plan`."""

from __future__ import annotations

import dataclasses
import json

import pytest
from uvmalloc import plan
from uvmalloc.cli import main
from uvmalloc.errors import CommandError
from uvmalloc.libraries import find_libraries

from bench.oversubscription.bound import Bound, End, Kernel
from bench.oversubscription.compare import Point, keys_of

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


POINT = Point(
    workload="w", machine="h100-pcie5", times=1.5, memory_bytes=BLOCK, resident_ns=100.0,
    policies={
        "off": {"failure": "it does not fit"},
        "driver": {"step_ns": 400},
        "lru": {"step_ns": 300},
        "planned": {
            "step_ns": 120, "to_device_bytes": 2 * BLOCK, "to_host_bytes": BLOCK, "faults": 3,
            "hint_calls": 5,
        },
    },
    bound={"moved_bytes": 2.0 * BLOCK, "to_device_bytes": BLOCK, "to_host_bytes": BLOCK},
    to_device_bytes_per_ns=BLOCK / 40, to_host_bytes_per_ns=BLOCK / 40,
)  # fmt: skip


def test_the_keys_are_the_worst_of_the_points() -> None:
    other = dataclasses.replace(
        POINT, workload="v", policies=POINT.policies | {"driver": {"step_ns": 120}}
    )
    keys = keys_of([POINT, other])
    assert keys["speedup_over_driver"] == pytest.approx((400 / 120) ** 0.5)
    assert keys["least_speedup"] == pytest.approx(1)
    assert keys["bytes_over_optimum"] == pytest.approx(1.5)
    assert keys["step_over_bound"] == pytest.approx(1.2)
    assert keys["hidden_share"] == pytest.approx(1 - 20 / 80)
    assert keys["steady_faults"] == 3
    assert keys["at_capacity"] is None
    assert keys["points_that_end_early"] == 0


def test_a_point_that_does_not_run_is_counted() -> None:
    failed = dataclasses.replace(
        POINT, policies=POINT.policies | {"planned": {"failure": "no memory"}}
    )
    keys = keys_of([failed])
    assert keys["points_that_end_early"] == 1
    assert keys["speedup_over_driver"] is None


def test_a_trace_of_no_use_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    if not find_libraries().what_if.is_file():
        pytest.skip("uvmalloc_plan is not built")
    file = tmp_path / "no.trace"
    file.write_text("nothing")
    code = main(["plan", str(file), "--machine", "h100-pcie5", "--memory", "1GiB"])
    assert code != 0
    assert "no.trace" in capsys.readouterr().err


def test_the_table_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    result = {
        "machine": "m", "footprint_bytes": 3 * BLOCK, "largest_kernel_bytes": BLOCK,
        "all_resident": {"step_ns": 1000000}, "smallest_memory_bytes": {"planned": 2 * BLOCK},
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
    plan.show(json.loads(json.dumps(result)), Console(width=200))
    shown = capsys.readouterr().out
    assert "it does not fit" in shown
    assert "1.50 x" in shown
    assert "planned: within 10 % of that from 4 MiB on." in shown


def test_a_missing_program_is_named(tmp_path) -> None:
    with pytest.raises(CommandError, match="scripts/build makes it"):
        plan.what_if(tmp_path / "none", tmp_path / "trace", "m", [BLOCK], None)
