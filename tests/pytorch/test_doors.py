"""Every way in which an address leaves torch is seen: a later move copies, and shares no block.

doors.py has the list of the ways, and checks one of them in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch import doors
from tests.pytorch.conftest import MOVES_PRELUDE, Simulate

PROGRAM = Path(doors.__file__)
INSTALLED = [
    pytest.param(name, device, id=f"{name}, {device}")
    for name, door in doors.DOORS.items()
    if door.exists
    for device in door.devices
]


@pytest.mark.parametrize("tensor", ["first", "second", "part"])
@pytest.mark.parametrize(("name", "device"), INSTALLED)
def test_a_block_whose_address_has_left_is_copied(
    simulate: Simulate, name: str, device: str, tensor: str
) -> None:
    """The tensor of the address is the one that was moved, or the one that the move made."""
    simulate(PROGRAM, name, device, tensor).check()


@pytest.mark.parametrize(
    "use",
    [
        "pickle.dumps(x)",
        "torch.save({'x': x, 'part': x[9:]}, io.BytesIO())",
        "copy.deepcopy(x), copy.copy(x)",
        "repr(x), x.sum().item(), x[:9].tolist(), hash(x), x.untyped_storage()[5]",
        "torch._C._storage_address(x), x._cdata, x.untyped_storage()._cdata",
        "torch._C._tensors_data_ptrs_at_indices_equal([x], [5], [0])",
        "x.is_shared(), x.is_pinned(), x.storage(), x.data, x.detach()",
        "torch.cuda.memory_snapshot()",
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_lets_no_address_out_leaves_the_block_shared(
    simulate: Simulate, use: str, device: str
) -> None:
    simulate(
        MOVES_PRELUDE
        + f"""
import copy, io, pickle
x = torch.arange(1 << 18, dtype=torch.int32, device={device!r})
def use(x):
    {use}
def move(x):
    before = copied()  # `use` itself may copy
    y = x.to('cpu' if x.is_cuda else 'cuda')
    assert copied() == before, copied()
    return y
use(x)
y = move(x)
use(x)
z = move(x)
"""
    ).check()


@pytest.mark.parametrize("maker", ["torch.arange(9)", "torch.arange(9).untyped_storage()"])
def test_tensors_and_storages_have_no_buffer(simulate: Simulate, maker: str) -> None:
    """memoryview() would be a door."""
    program = f"import torch\ntry:\n memoryview({maker})\nexcept TypeError:\n print('none')"
    assert simulate(program).check().stdout == "none\n"


def test_the_list_has_every_door_of_the_installed_torch() -> None:
    assert list(doors.unlisted()) == []
