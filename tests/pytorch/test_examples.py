"""The examples, plain PyTorch programs, give the same bits with and without uvmalloc."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GPT = ("--steps", "3", "--batch-size", "8", "--corpus-mib", "2")
CNN = ("--epochs", "1")


@pytest.mark.parametrize(("name", "options"), [("train_gpt", GPT), ("train_cnn", CNN)])
def test_losses_are_equal_bit_for_bit(
    simulate: Simulate, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    program = EXAMPLES / f"{name}.py"
    files = {True: tmp_path / "native.json", False: tmp_path / "uvmalloc.json"}
    runs = {
        native: simulate(program, *options, "--losses", str(file), native=native).check()
        for native, file in files.items()
    }
    assert json.loads(files[True].read_text()) == json.loads(files[False].read_text()) != []
    report, counters = runs[False].report, runs[False].sim
    assert all(facade["allocations"] > 0 for facade in report["facades"].values())
    assert report["moves"]["total"] > 0
    assert report["copies_by_moves"]["bytes_at_or_above_threshold"] == 0
    assert counters["device_allocations"] == counters["pinned_allocations"] == 0
    assert runs[True].sim["managed_allocations"] == 0


def test_losses_are_those_of_the_cpu(simulate: Simulate, tmp_path: Path) -> None:
    losses = {}
    for device in ("cpu", "cuda"):
        file = tmp_path / f"{device}.json"
        simulate(EXAMPLES / "train_gpt.py", *GPT, "--device", device, "--losses", str(file)).check()
        losses[device] = [float.fromhex(loss) for loss in json.loads(file.read_text())]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-5)


def test_out_of_memory_is_caught_and_training_goes_on_with_a_smaller_batch(
    simulate: Simulate,
) -> None:
    run = simulate(
        EXAMPLES / "train_gpt.py",
        "--steps",
        "2",
        "--corpus-mib",
        "2",
        "--catch-oom",
        budget="128MiB",
    ).check()
    assert "going on with a batch size of" in run.stdout
    assert run.report["out_of_memory"] > 0
    assert run.report["peak_touched_bytes"] <= 128 << 20


def test_a_training_that_lends_its_card_goes_on_bit_for_bit(
    simulate: Simulate, tmp_path: Path
) -> None:
    file = tmp_path / "losses.json"

    def losses(after: int, *, native: bool = False) -> list[str]:
        arguments = "--after", str(after), "--losses", str(file)
        run = simulate(EXAMPLES / "lend_the_card.py", *arguments, native=native).check()
        if after and not native:
            assert "0 MiB on the device" in run.stdout
            assert "the other program computed 8589934592.0" in run.stdout
            (group,) = run.report["groups"]
            assert (group["name"], group["sleeps"], group["wakes"]) == ("training", 1, 1)
            assert group["left_bytes"] > 40 << 20
        computed: list[str] = json.loads(file.read_text())
        return computed

    lent = losses(3)
    assert len(lent) == 6
    assert lent == losses(0) == losses(3, native=True)
