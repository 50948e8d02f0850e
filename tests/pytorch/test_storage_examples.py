"""The examples of docs/reference/pipelines.md give the results that they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_training_stays_within_the_memory_of_its_pipeline(simulate: Simulate) -> None:
    run = simulate(EXAMPLES / "pipeline_training.py", "--memory", "8MiB", "--epochs", "2").check()
    lines = run.stdout.splitlines()
    losses = [float(line.split()[-1]) for line in lines[:2]]
    assert losses[1] < losses[0]
    assert 0 < float(lines[2].split()[4]) <= 8


def test_an_exported_resnet_gives_the_same_bits_at_every_batch_size(simulate: Simulate) -> None:
    run = simulate(EXAMPLES / "plan_exported_model.py", "--largest-batch", "4", native=True).check()
    lines = run.stdout.splitlines()
    assert float(lines[0].split()[3]) <= 1.02
    assert lines[1:] == [f"batch of {size}: the same bits" for size in (1, 4, 3, 1)]


def test_a_checkpoint_of_three_times_the_device_runs(simulate: Simulate) -> None:
    options = ("--layers", "6", "--width", "1024", "--window", "9MiB")
    run = simulate(EXAMPLES / "stream_checkpoint.py", *options, capacity="40MiB").check()
    assert run.stdout.splitlines()[1] == "largest difference from the model in memory: 0"
