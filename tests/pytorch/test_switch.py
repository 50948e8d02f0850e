"""On, off, and unable: what the variable does, and what a user reads if uvmalloc cannot start."""

from __future__ import annotations

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import Simulate

WHICH = """
import torch
x = torch.ones(1 << 20)
y = x.to('cuda')
z = x.pin_memory()
w = torch.ones(4, device='cuda')
print(torch.cuda.get_allocator_backend(), z.is_pinned(), x.is_pinned())
"""


def preload(libraries: Libraries) -> dict[str, str]:
    return {"LD_PRELOAD": str(libraries.require_uvmalloc())}


def test_the_literal_line_works(simulate: Simulate, libraries: Libraries) -> None:
    """LD_PRELOAD=libuvmalloc_preload.so PYTORCH_ENABLE_UNIFIED_MEMORY=1 python program.py"""
    run = simulate(
        WHICH,
        native=True,
        environment={**preload(libraries), "PYTORCH_ENABLE_UNIFIED_MEMORY": "1"},
    ).check()
    assert (run.stdout, run.stderr) == ("uvmalloc True False\n", "")
    assert run.sim["device_allocations"] == 0
    assert run.sim["pinned_allocations"] == 0


@pytest.mark.parametrize("value", [None, "", "0", "off"])
def test_switched_off_nothing_changes(
    simulate: Simulate, libraries: Libraries, value: str | None
) -> None:
    switch = {} if value is None else {"PYTORCH_ENABLE_UNIFIED_MEMORY": value}
    run = simulate(WHICH, native=True, environment={**preload(libraries), **switch}).check()
    assert run.stdout == "native True False\n"
    assert run.stderr == ""
    assert run.sim["managed_allocations"] == 0
    assert run.sim["device_allocations"] > 0
    assert run.sim["pinned_allocations"] > 0


def test_all_three_allocators_are_replaced(simulate: Simulate) -> None:
    run = simulate(WHICH).check()
    assert {name: facade["allocations"] > 0 for name, facade in run.report["facades"].items()} == {
        "host": True,
        "pinned": True,
        "device": True,
    }
    assert run.report["native_allocations"] == {"device": 0, "pinned": 0, "host": 0}
    assert run.sim["device_allocations"] == run.sim["pinned_allocations"] == 0
    assert run.sim["managed_allocations"] > 0


def test_a_malformed_switch_is_one_line_and_off(simulate: Simulate, libraries: Libraries) -> None:
    run = simulate(
        WHICH,
        native=True,
        environment={**preload(libraries), "PYTORCH_ENABLE_UNIFIED_MEMORY": "maybe"},
    ).check()
    assert run.stdout.startswith("native")
    assert run.stderr.count("\n") == 1
    assert "PYTORCH_ENABLE_UNIFIED_MEMORY='maybe'" in run.stderr and "accepted" in run.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UVMALLOC_POLICY", "magic"),
        ("UVMALLOC_BUDGET", "plenty"),
        ("UVMALLOC_HOST_THRESHOLD", "-3"),
        ("UVMALLOC_BUGDET", "1G"),
    ],
)
def test_a_malformed_setting_is_one_line_and_the_program_goes_on(
    simulate: Simulate, name: str, value: str
) -> None:
    run = simulate(WHICH, environment={name: value}).check()
    assert run.stdout.startswith("uvmalloc")
    assert run.stderr.count("\n") == 1 and name in run.stderr


def test_without_a_device_cpu_programs_run_as_before(simulate: Simulate) -> None:
    run = simulate(
        "import torch; print(torch.ones(1 << 20).sum().item(), torch.cuda.is_available())",
        environment={"CUDA_VISIBLE_DEVICES": ""},
    ).check()
    assert run.stdout == "1048576.0 False\n"
    assert run.stderr.count("\n") == 1
    assert "not active" in run.stderr and "no CUDA device" in run.stderr


def test_an_unknown_runtime_is_one_line_and_stock_memory(simulate: Simulate) -> None:
    run = simulate(WHICH, environment={"UVMALLOC_RUNTIME": "abacus"}).check()
    assert run.stdout.startswith("native")
    assert run.stderr.count("\n") == 1 and "abacus" in run.stderr and "cuda" in run.stderr


def test_importing_torch_alone_makes_no_driver_call(simulate: Simulate) -> None:
    """A launcher that imports torch must not pay for a context nor lose the ability to fork."""
    run = simulate("import torch; torch.ones(1000)").check()
    assert run.report == {}
    assert run.sim.get("managed_allocations", 0) == 0
