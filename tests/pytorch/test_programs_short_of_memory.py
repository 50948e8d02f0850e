"""The programs that the benchmark runs with too little memory."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bench.oversubscription import live
from bench.oversubscription.programs import PROGRAMS

# Two runs of a program take half a minute.
_IN_EACH_RUN = ("experts", "in_turns", "streaming")
_NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in _IN_EACH_RUN else pytest.mark.all)
    for name in PROGRAMS
]


@pytest.mark.parametrize("name", _NAMES)
def test_a_program_needs_what_the_table_says_and_has_the_same_results_with_less(name: str) -> None:
    enough = live.run(name, "auto", 0, live.ENOUGH_MIB)
    assert enough.managed_bytes / (1 << 20) == pytest.approx(PROGRAMS[name].needs_mib, rel=0.05)
    assert enough.link_bytes_of_a_step == 0
    assert len(set(enough.results)) == len(enough.results), "each batch has its own result"
    less = live.run(name, "lru", 1.5, live.capacity_for(enough.managed_bytes, 1.5))
    assert less.results == enough.results
    assert less.link_bytes_of_a_step > 0


@pytest.mark.slow
def test_experts_use_few_of_their_weights() -> None:
    steps = live.run("experts", "auto", 0, live.ENOUGH_MIB).steps
    totals = [step["used_bytes"] for step in steps]
    used = [after - before for before, after in itertools.pairwise(totals)]
    expert_bytes = 4 << 20
    assert all(bytes_ % expert_bytes == 0 and bytes_ <= 2 * 8 * expert_bytes for bytes_ in used)
    assert len(set(used)) > 1, "the data choose"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["streaming", pytest.param("dense", marks=pytest.mark.all)])
def test_offloaded_weights_run_with_the_memory_of_few_layers_and_give_the_same_results(
    name: str,
) -> None:
    def run(module: str, arguments: tuple[str, ...], policy: str | None, mib: int) -> Any:
        return live.run_module((f"bench.oversubscription.{module}", *arguments), policy, mib)

    offloaded = run("offload_here", (name, "0", "3"), None, 128)
    ordinary = run("live_steps_here", (name, "3"), "auto", live.ENOUGH_MIB)
    results = [[step["result"] for step in each["steps"]] for each in (offloaded, ordinary)]
    assert results[0] == results[1]
    assert offloaded["reserved_bytes"] < ordinary["managed_bytes"] / 4
