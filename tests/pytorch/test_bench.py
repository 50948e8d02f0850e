"""The benchmark's program: a run of the smallest level gives every figure that uvmalloc can have.

The tests do not check the values of the figures, which depend on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from uvmalloc._trace.reader import FACADES, MARK, read_trace
from uvmalloc.libraries import find_libraries

import bench.__main__ as bench_command
from bench.allocators import engines as allocators
from bench.allocators.compare import compare
from bench.allocators.derived import add_derived
from bench.allocators.engines import DRIVEN, engine_environment, find_programs
from bench.allocators.faults import faults
from bench.allocators.measure import Absent, Results, measure
from bench.allocators.plan import FULL, QUICK, SMOKE, Figure, Question, questions
from bench.allocators.show import show
from bench.allocators.targets import targets
from bench.traces import committed_file, committed_traces, unpack
from bench.traces.record import NAMES, device_facade_only

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMPARED_KEYS = {
    "pair_ns",
    "two_thread_scaling",
    "live_scaling",
    "churn_ns",
    "random_grid_ns",
    "replay_ns",
    "replay_failures",
    "replay_overlaps",
    "touched_over_live",
    "touched_over_live_mean",
    "touched_over_live_most",
    "steady_driver_calls",
}
KEYS = COMPARED_KEYS | {
    "touched_over_live_discard",
    "budget_percent",
    "discard_calls",
    "least_budget_mean",
    "least_budget_most",
    "prefetches_per_move",
    "metadata_bytes",
    "metadata_percent",
    "trace_cost",
    "trace_event_ns",
}
# The least work for every allocator.
TINY = replace(
    SMOKE, sizes=("512 B",), few_live=10, many_live=100, churn_live=(10,), replacements=100,
    grid_allocations=(10,), more_steps=1, beginnings=1, metadata_divisor=10_000,
)  # fmt: skip


def run_bench(output: Path, timeout_seconds: float, *options: str) -> None:
    """Runs the smallest level and writes to that folder."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--level", "smoke", "--output", str(output), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run that also replays a given trace, the smallest of those
    committed."""
    folder = tmp_path_factory.mktemp("bench")
    given = f"given={committed_file('cnn')}"
    run_bench(folder, 120, "--part", "engine", "--allocators", "uvmalloc", "--replay", given)
    return folder


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "engine.json").read_text())


def test_every_key_has_values_of_uvmalloc(document: dict[str, Any]) -> None:
    assert document.keys() >= KEYS
    assert list(document["allocators"]) == ["uvmalloc"]
    # A library without traces cannot measure the cost of a trace.
    excused = {gap["key"] for gap in document["absent"] if "UVMALLOC_TRACE" in gap["reason"]}
    assert excused <= {"trace_cost", "trace_event_ns", "trace_ns"}
    left_out = {
        (gap["key"], gap["case"])
        for gap in document["absent"]
        if gap["reason"] == "left out of --level smoke"
    }
    missing = {
        (key, case)
        for key in KEYS - excused
        for case, value in document[key]["uvmalloc"].items()
        if value is None
    }
    assert missing == left_out
    assert {case for key, case in left_out if key == "churn_ns"} == {
        "100,000 live, up to 4 MiB",
        "1,000,000 live, up to 1 MiB",
    }


def test_committed_traces_and_one_given_are_replayed(document: dict[str, Any]) -> None:
    for key in ("replay_ns", "touched_over_live", "steady_driver_calls"):
        assert document[key]["uvmalloc"].keys() >= {*NAMES, "given"}
    live = document["touched_over_live"]["uvmalloc"]
    assert live["given"] == live["cnn"] >= 1


def test_a_tight_budget_is_kept(document: dict[str, Any]) -> None:
    for case, percent in document["budget_percent"]["uvmalloc"].items():
        assert 102 <= percent <= 110
        assert document["touched_over_live_discard"]["uvmalloc"][case] <= percent / 100


def test_no_replay_has_a_fault(document: dict[str, Any]) -> None:
    assert document["faults"] == []
    for key in ("replay_failures", "replay_overlaps"):
        cases = document[key]["uvmalloc"]
        assert cases.keys() >= {"cnn", "cnn, 10 steps more", "cnn, tight"}
        assert set(cases.values()) == {0}


def test_faults_name_allocator_replay_and_count() -> None:
    found = faults(
        {
            "replay_failures": {"cub": {"cnn": 3, "lstm": None, "gpt2": 0}},
            "replay_overlaps": {"uvmalloc": {"cnn, tight": 2, "cnn": 0}, "cub": {"lstm": None}},
        }
    )
    assert found == [
        "cub, replay of cnn: 3 requests fail",
        "cub, replay of lstm: not checked",
        "uvmalloc, replay of cnn, tight: 2 blocks lie over others that are live",
    ]


@pytest.mark.all
def test_an_allocator_without_enough_memory_for_a_replay_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocators, "CAPACITY_BYTES", 256 << 20)  # the trace needs 272 MiB
    traces = {"cnn": committed_file("cnn")}
    file = tmp_path / "engine.json"
    wrong = compare(find_libraries(), TINY, ["pytorch"], traces, False, file, Console())
    failed = json.loads(file.read_text())["replay_failures"]["pytorch"]
    assert failed["cnn"] > 0
    assert f"pytorch, replay of cnn: {failed['cnn']:.0f} requests fail" in wrong


@pytest.mark.parametrize(("wrong", "code"), [([], 0), (["cub, replay of cnn: not checked"], 1)])
def test_a_fault_is_exit_code_1(
    wrong: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command.engine, "compare", lambda *_: wrong)
    monkeypatch.setattr(sys, "argv", ["bench", "--part", "engine"])
    assert bench_command.main() == code


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run with CUB and the allocators that every build with torch has."""
    folder = tmp_path_factory.mktemp("comparison")
    wanted = ["uvmalloc", "pytorch", "cub", "jemalloc"]
    traces = {"cnn": committed_file("cnn")}
    file = folder / "engine.json"
    assert compare(find_libraries(), TINY, wanted, traces, False, file, Console()) == []
    return folder


def test_allocators_that_are_compared_have_the_same_cases(comparison: Path) -> None:
    document = json.loads((comparison / "engine.json").read_text())
    present = [name for name in ("uvmalloc", "pytorch", "cub") if name in document["allocators"]]
    assert set(present) >= {"uvmalloc", "pytorch"}
    not_compared = set() if "cub" in present else {"cub"}  # without CCCL headers it is not built
    assert set(document["not_compared"]) == not_compared
    left_out = {(gap["key"], gap["allocator"], gap["case"]) for gap in document["absent"]}
    for key in COMPARED_KEYS:
        for name in present:
            cases = document[key][name]
            ours = set(document[key]["uvmalloc"])
            if key in ("replay_failures", "replay_overlaps"):
                ours = {"cnn"} if name != "uvmalloc" else {"cnn", "cnn, 1 steps more", "cnn, tight"}
            assert set(cases) == ours
            for case, value in cases.items():
                assert (value is None) == ((key, name, case) in left_out)
                # A difference of times may be negative on a busy machine.
                assert value is None or value >= 0 or key.startswith("live_")
    assert set(document["pair_ns"]["jemalloc"]) == {"512 B"}


def test_charts_show_who_is_compared(comparison: Path) -> None:
    assert (comparison / "engine.png").read_bytes().startswith(b"\x89PNG\r\n")
    chart = ElementTree.parse(comparison / "engine.svg")
    assert chart.getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(chart.iter("{http://www.w3.org/2000/svg}path"))) > 10


@pytest.mark.parametrize(
    ("program", "case"),
    [
        ("pair_bench", "device_pair/512"),
        ("trace_bench", "event_off"),
        ("trace_bench", "event_on/iterations:4000000"),
        ("small_arena_bench", "small_arena_batch/size:512/live:0"),
    ],
)
def test_a_program_for_parts_of_the_engine_runs(program: str, case: str, tmp_path: Path) -> None:
    libraries = find_libraries()
    out = tmp_path / "out.json"
    subprocess.run(
        [
            libraries.folder.parent / "bin" / program,
            f"--benchmark_filter=^{case}$",
            "--benchmark_min_time=0.001",
            f"--benchmark_out={out}",
        ],
        env=engine_environment(libraries),
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    measured = json.loads(out.read_text())["benchmarks"]
    assert [each["name"] for each in measured] == [case]
    assert measured[0]["real_time"] > 0
    assert "error_occurred" not in measured[0]


def test_traces_hold_the_device_facade_in_marked_steps(tmp_path: Path) -> None:
    plain = unpack(committed_traces(), tmp_path)
    assert plain.keys() == set(NAMES)
    for file in plain.values():
        trace = read_trace(file)
        marks = trace.events["kind"] == MARK
        texts = [trace.text(MARK, int(number)) for number in trace.events["extra"][marks]]
        assert texts == [*(f"step {step}" for step in range(len(texts) - 1)), "end"]
        assert len(texts) > 3
        assert set(trace.events["facade"][~marks]) == {FACADES.index("device")}
        content = file.read_bytes()
        assert device_facade_only(content) == content


def test_a_new_trace_is_cut_to_the_device_facade(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    writer = find_libraries().folder.parent / "bin" / "write_trace"
    subprocess.run([writer, whole, "20000"], check=True)
    cut.write_bytes(device_facade_only(whole.read_bytes()))
    before, after = read_trace(whole), read_trace(cut)
    is_device = before.events["facade"] == FACADES.index("device")
    assert after.events.tolist() == before.events[is_device].tolist()
    assert after.times_ns.tolist() == before.times_ns[is_device].tolist()
    assert len(after.events) == 20_000


def test_a_verdict_names_every_target_of_pairs(document: dict[str, Any]) -> None:
    cases = {target["case"] for target in document["targets"] if target["name"] == "pair, ns"}
    assert cases == set(document["pair_ns"]["uvmalloc"])
    assert all(target["met"] in (True, False, None) for target in document["targets"])


@pytest.mark.parametrize(("ours", "met"), [(30.0, True), (30.2, False), (None, None)])
def test_small_pairs_are_judged_by_jemalloc_alone(ours: float | None, met: bool | None) -> None:
    results: Results = {
        "pair_ns": {
            "uvmalloc": {"4 KiB": ours, "64 KiB": 15.0, "lifo64": 15.0},
            "jemalloc": {"4 KiB": 20.0, "64 KiB": 1.0},
        }
    }
    verdict = [target for target in targets(results) if "jemalloc" in target.name]
    assert [(target.case, target.bound, target.met) for target in verdict] == [("4 KiB", 1.5, met)]


def test_churns_go_up_to_a_million_blocks_and_say_who_is_left_out() -> None:
    for level, left_out in {
        FULL: {100_000: {"rmm"}, 1_000_000: {"rmm", "cub"}},
        QUICK: {100_000: {"rmm"}, 1_000_000: set(DRIVEN)},
    }.items():
        churns = {
            int(question.request.split()[1].removeprefix("live=")): question
            for question in questions(level, {}, Path())
            if question.figures[0].key == "churn_ns"
        }
        assert list(churns) == [1000, 10_000, 100_000, 1_000_000]
        for live, question in churns.items():
            assert set(question.left_out) == left_out.get(live, set())
            assert set(question.allocators) == set(DRIVEN) - set(question.left_out)


def test_what_a_trace_costs_is_a_ratio_and_time_for_each_event() -> None:
    results: Results = {
        "trace_ns": {
            "uvmalloc": {
                "64 KiB, traced": 40.0, "64 KiB, not traced": 10.0,
                "random64, traced": 230.0, "random64, not traced": 20.0,
                "churn, 2,000 live, traced": 199.0, "churn, 2,000 live, not traced": None,
            }
        }
    }  # fmt: skip
    gaps = [Absent("trace_ns", "uvmalloc", "churn, 2,000 live, not traced", "why")]
    add_derived(results, gaps, SMOKE)
    assert results["trace_cost"]["uvmalloc"] == {
        "64 KiB": 4, "random64": 11.5, "churn, 2,000 live": None,
    }  # fmt: skip
    assert results["trace_event_ns"]["uvmalloc"] == {
        "64 KiB": 15, "random64": 105, "churn, 2,000 live": None,
    }  # fmt: skip
    assert {gap.reason for gap in gaps} == {"why"}
    met = {t.case: t.met for t in targets(results) if t.name == "an event of a trace, ns"}
    assert met == {"64 KiB": True, "random64": False, "churn, 2,000 live": None}


def test_who_is_left_out_is_absent_with_the_reason() -> None:
    program = find_programs(find_libraries())[0]["uvmalloc"]
    question = Question("", (Figure("churn_ns", "case", "ns"),), (), left_out={"uvmalloc": "why"})
    measured = measure({"uvmalloc": program}, [question], 2, lambda *_: None)
    assert measured.results() == {"churn_ns": {"uvmalloc": {"case": None}}}
    assert measured.gaps() == [Absent("churn_ns", "uvmalloc", "case", "why")]


def test_a_missing_value_is_named_with_its_case_where_others_of_the_key_are_there() -> None:
    results: Results = {
        "churn_ns": {"cub": {"few": 1.0, "many": None}},
        "replay_ns": {"cub": {"cnn": None, "lstm": None}},
    }
    gaps = [
        Absent("churn_ns", "cub", "many", "why"),
        Absent("replay_ns", "cub", "cnn", "why"),
        Absent("replay_ns", "cub", "lstm", "why"),
    ]
    console = Console(width=200)
    with console.capture() as said:
        show(results, [], gaps, console)
    assert "no churn_ns (many), replay_ns of cub: why\n" in said.get()


def test_a_second_prefetch_for_a_move_is_a_miss() -> None:
    results: Results = {
        "prefetches_per_move": {"uvmalloc": {"to": 1.0, "from": 1.01, "256 MiB, to": 8.0}}
    }
    verdict = [(target.case, target.met) for target in targets(results)]
    assert verdict == [("to", True), ("from", False)]


@pytest.mark.all
def test_programs_give_every_figure(tmp_path: Path) -> None:
    run_bench(tmp_path, 300, "--pytorch")
    document = json.loads((tmp_path / "pytorch.json").read_text())
    for key in ("to_1gib_ratio", "module_to_ratio", "eager_step_ratio", "empty_ratio"):
        assert document[key] > 0
    assert 1 <= document["load_peak_ratio"] < 3
    for way, by_profile in document["load_peaks"].items():
        for profile, by_allocator in by_profile.items():
            for allocator, peak in by_allocator.items():
                assert 0.9 < peak["ratio"] < 4, (way, profile, allocator, peak)
    for key in ("to_1gib_bytes", "rfc_examples_failed", "differential_failures"):
        assert document[key] == 0
    assert {target["key"] for target in document["targets"]} <= document.keys()
