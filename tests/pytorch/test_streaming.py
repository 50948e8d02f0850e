"""uvmalloc.stream_safetensors: windows, read-ahead, models module by module, damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

HEAD = """
import os, sys, torch, uvmalloc
from safetensors.torch import save_file
folder, device = sys.argv[1], sys.argv[2]
file = os.path.join(folder, "model.safetensors")
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stream_gives_every_tensor_once_within_its_window(
    simulate: Simulate, tmp_path: Path, device: str
) -> None:
    simulate(
        HEAD
        + """
made = {f"layer{number:02}": torch.randn(1 << 18) for number in range(24)}  # of 1 MiB
save_file(made, file)
with uvmalloc.stream_safetensors(file, device, window="8MiB") as stream:
    assert stream.names == sorted(made)
    seen = 0
    pieces = 0
    for tensors in stream:
        pieces += 1
        assert 1 <= len(tensors) <= 4
        for name, tensor in tensors.items():
            assert tensor.device.type == device
            assert torch.equal(tensor.cpu(), made[name])
            seen += 1
    assert (seen, pieces, tensors) == (24, 6, {}), (seen, pieces)
    assert stream.bytes_read == 24 << 20
""",
        str(tmp_path),
        device,
    ).check()


def test_a_model_of_three_times_the_device_runs_module_by_module(
    simulate: Simulate, tmp_path: Path
) -> None:
    simulate(
        HEAD
        + """
layers = [torch.nn.Linear(1024, 1024) for _ in range(12)]  # 4 MiB each: 48 MiB
model = torch.nn.Sequential(*layers)
save_file(model.state_dict(), file)
x = torch.randn(2, 1024)
with torch.no_grad():
    wanted = model(x)
with torch.device("meta"):
    empty = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)])
with uvmalloc.stream_safetensors(file, device, window="9MiB") as stream, stream.into(empty):
    for _ in range(2):
        with torch.no_grad():
            found = empty(x.to(device))
        assert torch.equal(found.cpu(), wanted)
    assert all(parameter.is_meta for parameter in empty.parameters())
    # The second pass begins anew; what was read ahead at the end of the first was nothing.
    assert stream.bytes_read == 2 * sum(4 * p.numel() for p in empty.parameters())
    with torch.no_grad():
        again = empty[3](x.to(device))  # out of order
    assert torch.equal(again.cpu(), layers[3](x).detach())
""",
        str(tmp_path),
        "cuda",
        capacity="40MiB",
    ).check()


def test_what_does_not_fit_or_is_damaged_is_named(simulate: Simulate, tmp_path: Path) -> None:
    run = simulate(
        HEAD
        + """
save_file({"small": torch.ones(1 << 18), "large": torch.ones(3 << 18)}, file)
def error(function):
    try:
        function()
    except (ValueError, OSError) as thrown:
        print(str(thrown).replace(folder, "FOLDER"))
for window in ("none", 1, True):
    error(lambda: uvmalloc.stream_safetensors(file, device, window=window))
with uvmalloc.stream_safetensors(file, device, window="4MiB") as stream:
    error(lambda: list(stream))
    error(lambda: stream.into(torch.nn.Linear(2, 2)).__enter__())
save_file({f"t{n}": torch.full((1 << 18,), float(n)) for n in range(6)}, file)
with uvmalloc.stream_safetensors(file, device, window="2MiB") as stream:
    pieces = iter(stream)
    first = next(pieces)["t0"]
    os.truncate(file, os.path.getsize(file) - (1 << 20) - 8)
    def rest():
        for piece in pieces:
            list(piece.values())
    error(rest)
    assert first.eq(0).all(), "what was given stays"
# A read that fails is repeated, then an error that names the place.
save_file({f"t{n}": torch.full((1 << 18,), float(n)) for n in range(6)}, file)
real, calls = os.preadv, []
def failing(descriptor, buffers, offset):
    calls.append(offset)
    if len(calls) % 3 != 0:
        raise OSError(5, "Input/output error")
    return real(descriptor, buffers, offset)
os.preadv = failing
found = uvmalloc.load_safetensors(file, device)
assert [int(found[f"t{n}"][7]) for n in range(6)] == list(range(6))
def always(descriptor, buffers, offset):
    raise OSError(5, "Input/output error")
os.preadv = always
error(lambda: uvmalloc.load_safetensors(file, device))
""",
        str(tmp_path),
        "cpu",
        native=True,
    ).check()
    lines = run.stdout.splitlines()
    accepted = "accepted: 512MiB, 8G, 1.5GiB or plain bytes"
    assert lines[:3] == [
        f"stream_safetensors: the window is {window}; {accepted}" for window in ("'none'", 1, True)
    ]
    assert lines[3] == (
        "FOLDER/model.safetensors: tensor 'large' has 3 MiB; "
        "accepted in a window of 4 MiB: half of it"
    )
    assert lines[4] == "FOLDER/model.safetensors has no tensor of the model"
    assert lines[5].startswith("FOLDER/model.safetensors ends at byte ")
    assert lines[6].startswith("[Errno 5] Input/output error, at byte ")
    assert "in 3 attempts: 'FOLDER/model.safetensors'" in lines[6]
