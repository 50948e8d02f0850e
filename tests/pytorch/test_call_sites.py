"""Call sites in traces: the line of a PyTorch program that made each tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
from uvmalloc._trace.reader import ALLOCATE, SITE, Trace, read_trace

from tests.pytorch.conftest import Simulate

# The tests name the numbers of these lines.
PROGRAM = """import threading, torch
def weights():
    return torch.ones(1 << 20, device='cuda', requires_grad=True)
w = weights()
host = torch.zeros(3 << 20)
pinned = torch.zeros(5 << 20, pin_memory=True)
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x * w)
thread = threading.Thread(target=lambda: torch.ones(7 << 20, device='cuda'))
thread.start()
thread.join()
Model()(torch.ones_like(w)).sum().backward()
"""


@pytest.fixture
def traced(simulate: Simulate, tmp_path: Path):
    def run(**variables: str) -> tuple[str, Trace]:
        program, file = tmp_path / "model.py", tmp_path / "run.trace"
        program.write_text(PROGRAM)
        simulate(program, environment={"UVMALLOC_TRACE": str(file), **variables}).check()
        return str(program), read_trace(file)

    return run


def sites_by_size(trace: Trace) -> dict[int, list[str]]:
    """Returns the texts of the call sites of allocations, by size."""
    sizes: dict[int, int] = {}
    found: dict[int, list[str]] = {}
    for event in trace.events:
        address = int(event["address"])
        if event["kind"] == ALLOCATE:
            sizes[address] = int(event["size_bytes"])
        elif event["kind"] == SITE:
            found.setdefault(sizes[address], []).append(trace.text(SITE, int(event["extra"])))
    return found


def test_each_tensor_has_the_line_of_the_program_that_made_it(traced):
    program, trace = traced(UVMALLOC_CALL_SITES="1")
    sites = sites_by_size(trace)
    assert sites[12 << 20] == [f"{program}:5 <module>"]
    assert sites[20 << 20] == [f"{program}:6 <module>"]
    assert sites[28 << 20] == [f"{program}:10 <lambda>"]
    made = sites[4 << 20]
    assert made[0] == f"{program}:3 weights"
    assert f"{program}:9 Model.forward" in made or f"{program}:9 forward" in made
    assert any(site.endswith(", GeluBackward0") for site in made)
    assert not any("/torch/" in site for site in made)


def test_without_the_setting_a_trace_has_no_call_sites(traced):
    _, trace = traced()
    assert SITE not in trace.events["kind"]
    assert trace.texts == []
