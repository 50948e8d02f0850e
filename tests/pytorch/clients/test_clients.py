"""Unmodified programs that use PyTorch through other libraries print the same with uvmalloc and
with torch's own allocators. No large tensor is copied if a move suffices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.conftest import Simulate, SimulatedRun

PROGRAMS = Path(__file__).parent
# The libraries must not use the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def last_line(run: SimulatedRun) -> Any:
    return json.loads(run.stdout.splitlines()[-1])


def run_both(
    simulate: Simulate, program: str | Path, *options: str, devices: int = 1
) -> tuple[Any, SimulatedRun]:
    """Runs the program with torch's allocators and with uvmalloc; the last lines must be equal.
    Returns that line and the run with uvmalloc."""
    stock, ours = (
        simulate(
            program,
            *options,
            native=native,
            devices=devices,
            environment=OFFLINE,
            timeout_seconds=300,
        ).check()
        for native in (True, False)
    )
    assert last_line(ours) == last_line(stock)
    assert ours.sim["device_allocations"] == ours.sim["pinned_allocations"] == 0
    return last_line(ours), ours


def large_copies(run: SimulatedRun, *allowed: str) -> int:
    """Returns the bytes of large tensors that moves copied for reasons not in `allowed`."""
    reasons = run.report["copies_by_moves"]["by_reason"]
    return sum(
        reason["bytes_at_or_above_threshold"]
        for name, reason in reasons.items()
        if name not in allowed
    )


@pytest.mark.parametrize(
    ("model", "workers"), [("gpt2", "0"), pytest.param("llama", "2", marks=pytest.mark.all)]
)
def test_transformers_trains_and_generates(simulate: Simulate, model: str, workers: str) -> None:
    found, run = run_both(
        simulate, PROGRAMS / "train_language_model.py", model, "--workers", workers
    )
    assert len(found["losses"]) == 6
    assert found["sampling_repeats"]
    assert run.report["moves"]["total"] > 0
    # The writer of a checkpoint looks at the addresses of all tensors before they move to the host.
    assert large_copies(run, "exported_pointer") == 0


def test_torchvision_trains_from_forked_workers(simulate: Simulate) -> None:
    found, run = run_both(simulate, PROGRAMS / "train_resnet.py")
    assert len(found["losses"]) == 6
    assert run.report["moves"]["total"] > 0
    # A batch changes its layout on the way to the device, so it is copied and not moved.
    assert large_copies(run, "layout") == 0


def test_accelerate_places_and_offloads(simulate: Simulate) -> None:
    found, run = run_both(simulate, PROGRAMS / "offload_model.py")
    assert set(found["part"]["map"].values()) == {"0", "cpu"}
    # Checkpoints are mapped files, which cannot move to a device.
    assert large_copies(run, "foreign_memory") == 0


def test_safetensors_round_trips(simulate: Simulate) -> None:
    found, run = run_both(simulate, PROGRAMS / "exchange_safetensors.py")
    assert all(found.values())
    # Tensors that are loaded to the host lie in a mapped file.
    assert large_copies(run, "foreign_memory") == 0


# The program that `torchrun` starts.
TORCHRUN = "from torch.distributed.run import main; main()"


@pytest.mark.parametrize(
    ("kind", "weight"),
    [pytest.param("ddp", "Parameter", marks=pytest.mark.all), ("fsdp", "DTensor")],
)
def test_two_ranks_train_over_gloo(simulate: Simulate, kind: str, weight: str) -> None:
    found, _ = run_both(
        simulate,
        TORCHRUN,
        "--standalone",
        "--nproc-per-node=2",
        str(PROGRAMS / "train_distributed.py"),
        kind,
        devices=2,
    )
    assert len(found["losses"]) == 4
    assert found["weight"] == weight
