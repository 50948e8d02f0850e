"""Every way in which the address of a tensor's memory leaves torch, and what must not be one.

`DOORS` has each way once. As a program, `doors.py NAME DEVICE TENSOR` shares a tensor between two
devices, takes the address of one of the two by that door, writes through the address, and checks
that only this tensor sees the write: at once, and after a move that comes later. test_doors.py runs
it for each door, and looks for doors of the installed torch that the list lacks.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import dlpack

Take = Callable[[torch.Tensor], Any]

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = (ctypes.py_object,)


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


# DLManagedTensorVersioned begins with four words: version, context, deleter and flags.
_VERSIONED_BYTES = 32


def _address_in_capsule(capsule: object) -> int:
    name = _capsule_name(capsule)
    at = _capsule_pointer(capsule, name)
    return _word(at + (_VERSIONED_BYTES if name == b"dltensor_versioned" else 0))


# The functions of DLPackExchangeAPI that take a tensor, by their offset.
_MANAGED_FROM_TENSOR, _UNMANAGED_FROM_TENSOR = 24, 40


def _through_table(table: object, offset: int) -> Take:
    def take(tensor: torch.Tensor) -> object:
        at = _capsule_pointer(table, b"dlpack_exchange_api") + offset
        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(_word(at))
        out = ctypes.create_string_buffer(64)  # a DLTensor, or the address of a managed one
        assert call(tensor, ctypes.addressof(out)) == 0
        return out

    return take


def _address_in_unmanaged(out: object) -> int:
    return _word(ctypes.addressof(out))


def _address_in_managed(out: object) -> int:
    return _word(_word(ctypes.addressof(out)) + _VERSIONED_BYTES)


@dataclass(frozen=True)
class Door:
    """`names` are the attributes through which the door leads. If torch lacks the first one, it
    lacks the door."""

    names: tuple[str, ...]
    take: Take
    address: Callable[[Any], int] = int
    devices: tuple[str, ...] = ("cpu", "cuda")
    reason: str = "exported_pointer"  # why a later move copies

    @property
    def exists(self) -> bool:
        return self.names[0] in attributes()


def _exchange(name: str, get_table: Callable[[], object]) -> dict[str, Door]:
    return {
        f"{name}, unmanaged": Door(
            (name,),
            lambda x: _through_table(get_table(), _UNMANAGED_FROM_TENSOR)(x),
            _address_in_unmanaged,
        ),
        f"{name}, managed": Door(
            (name,),
            lambda x: _through_table(get_table(), _MANAGED_FROM_TENSOR)(x),
            _address_in_managed,
        ),
    }


def _shared(share: Take, *names: str) -> Door:
    """A door through which another process gets the memory: torch moves it out of the block."""

    def take(tensor: torch.Tensor) -> torch.Tensor:
        share(tensor)
        return tensor

    return Door(names, take, lambda x: x.data_ptr(), devices=("cpu",), reason="foreign_memory")


DOORS = {
    "data_ptr": Door(("Tensor.data_ptr",), lambda x: x.data_ptr()),
    "data_ptr of a view": Door(("Tensor.data_ptr",), lambda x: x[9:].data_ptr() - 36),
    "const_data_ptr": Door(("Tensor.const_data_ptr",), lambda x: x.const_data_ptr()),
    "storage's data_ptr": Door(
        ("UntypedStorage.data_ptr",), lambda x: x.untyped_storage().data_ptr()
    ),
    "typed storage's data_ptr": Door(
        ("TypedStorage.data_ptr", "TypedStorage._data_ptr"), lambda x: x.storage().data_ptr()
    ),
    "_data_address": Door(("_C._data_address",), lambda x: torch._C._data_address(x)),
    "__cuda_array_interface__": Door(
        ("Tensor.__cuda_array_interface__",),
        lambda x: x.__cuda_array_interface__,
        lambda made: made["data"][0],
        devices=("cuda",),
    ),
    "numpy": Door(
        ("Tensor.numpy",), lambda x: x.numpy(), lambda made: made.ctypes.data, devices=("cpu",)
    ),
    "numpy of a view": Door(
        ("Tensor.numpy",),
        lambda x: x[9:].numpy(),
        lambda made: made.ctypes.data - 36,
        devices=("cpu",),
    ),
    "__array__": Door(
        ("Tensor.__array__",), np.asarray, lambda made: made.ctypes.data, devices=("cpu",)
    ),
    "__dlpack__": Door(("Tensor.__dlpack__",), lambda x: x.__dlpack__(), _address_in_capsule),
    "__dlpack__, versioned": Door(
        ("Tensor.__dlpack__",), lambda x: x.__dlpack__(max_version=(1, 0)), _address_in_capsule
    ),
    "to_dlpack": Door(("dlpack.to_dlpack",), lambda x: dlpack.to_dlpack(x), _address_in_capsule),
    "_to_dlpack": Door(
        ("_C._to_dlpack", "torch.to_dlpack"), lambda x: torch._C._to_dlpack(x), _address_in_capsule
    ),
    "_to_dlpack_versioned": Door(
        ("_C._to_dlpack_versioned",),
        lambda x: torch._C._to_dlpack_versioned(x),
        _address_in_capsule,
    ),
    "from_dlpack": Door(
        ("torch.from_dlpack", "dlpack.from_dlpack"),
        lambda x: torch.from_dlpack(x),
        lambda made: made.data_ptr(),
    ),
    "numpy's from_dlpack": Door(
        ("Tensor.__dlpack__",), np.from_dlpack, lambda made: made.ctypes.data, devices=("cpu",)
    ),
    "read-only DLPack": Door(
        ("dlpack.ReadOnlyTensorWrapper",),
        lambda x: dlpack.ReadOnlyTensorWrapper(x).__dlpack__(max_version=(1, 0)),
        _address_in_capsule,
    ),
    **_exchange("_C._dlpack_exchange_api", lambda: torch._C._dlpack_exchange_api()),
    **_exchange("Tensor.__dlpack_c_exchange_api__", lambda: torch.Tensor.__dlpack_c_exchange_api__),
    **_exchange("_C._const_dlpack_exchange_api", lambda: torch._C._const_dlpack_exchange_api()),
    "share_memory_": _shared(
        lambda x: x.share_memory_(),
        *("Tensor.share_memory_", "UntypedStorage.share_memory_", "TypedStorage._share_memory_"),
        "TypedStorage.share_memory_",
    ),
    "_share_fd_cpu_": _shared(
        lambda x: x.untyped_storage()._share_fd_cpu_(),
        *("UntypedStorage._share_fd_cpu_", "TypedStorage._share_fd_cpu_"),
    ),
    "_share_filename_cpu_": _shared(
        lambda x: x.untyped_storage()._share_filename_cpu_(),
        *("UntypedStorage._share_filename_cpu_", "TypedStorage._share_filename_cpu_"),
    ),
}

# Attributes that a search finds and that are no door: they get no tensor's address, or an address
# that nobody can write through.
NO_DOORS = {
    "_cdata": "the address of torch's own object",
    "_tensor_impl_raw_handle": "the address of torch's own object",
    "_storage_address": "the address of torch's own object",
    "_new_with_weak_ptr": "takes the address of torch's own object",
    "_set_cdata": "takes the address of torch's own object",
    "__array_priority__": "a number",
    "__array_wrap__": "takes an array",
    "__dlpack_device__": "the device",
    "is_pinned is_shared _is_shared is_pinned": "a truth value",
    "pin_memory _pin_memory": "a copy",
    "pinverse": "a result",
    "_tensors_data_ptrs_at_indices_equal": "compares addresses",
    "from_buffer _from_buffer frombuffer asarray from_numpy _from_dlpack": "takes memory",
    "_construct_storage_from_data_pointer": "takes an address",
    "_new_shared _new_shared_cuda _new_shared_fd_cpu _new_shared_filename_cpu": "new memory",
    "_shared_incref _shared_decref _get_shared_fd": "of memory that is already shared",
    "_release_ipc_counter _release_ipc_counter_cuda _cuda_ipc_collect ipc_collect": "counters",
    "_share_cuda_": "raises NotImplementedError for managed memory",
    "_swap_data_ptr_": "stays inside torch",
    "_gds_register_buffer _gds_deregister_buffer _gds_register_handle _gds_deregister_handle": (
        "cuFile uses the address only in calls that take the storage again"
    ),
    "_storage_throw_on_mutable_data_ptr _storage_throw_on_immutable_data_ptr": "set a mark",
    "_set_throw_on_mutable_data_ptr _set_warn_deprecated_on_mutable_data_ptr": "set a mark",
    "_set_storage_data_ptr_access_error_msg _clear_storage_data_ptr_access_error_msg": "a text",
    "_nested_view_from_buffer _nested_view_from_buffer_copy": "a view, or a copy",
}


def attributes() -> set[str]:
    """Returns the names in torch that may be doors, as `Tensor.data_ptr`."""
    of: dict[str, object] = {
        "Tensor": torch.Tensor,
        "UntypedStorage": torch.UntypedStorage,
        "TypedStorage": torch.TypedStorage,
        "torch": torch,
        "_C": torch._C,
        "dlpack": dlpack,
        "aten": torch._C._VariableFunctions,
    }
    return {f"{owner}.{name}" for owner, found in of.items() for name in dir(found)}


_MAY_BE = re.compile(
    "ptr|address|pointer|dlpack|__array|array_interface|numpy|share|buffer|ipc|cdata|raw_handle"
)
# Of these, code that deals with other things than the memory of tensors.
_OF_OTHERS = re.compile(
    "mobile|flatbuffer|model|lite_interpreter|_ir_module|BufferDict|vptr|tunableop|RefPtr|"
    "[sS]haredCache|_mps_|SharedWeights"
)


def unlisted() -> Iterator[str]:
    """Yields attributes of the installed torch that look like a door and are on neither list."""
    listed = {name for door in DOORS.values() for name in door.names}
    known = {name for names in NO_DOORS for name in names.split()}
    for name in sorted(attributes()):
        plain = name.partition(".")[2]
        may_be = _MAY_BE.search(plain) and not _OF_OTHERS.search(plain)
        if may_be and name not in listed and plain not in known:
            yield name


def _copied(reason: str) -> int:
    by_reason = json.loads(torch.ops.uvmalloc.report())["copies_by_moves"]["by_reason"]
    return by_reason.get(reason, {"count": 0})["count"]


def _write(address: int, value: int) -> None:
    torch.cuda.synchronize()
    ctypes.c_int32.from_address(address).value = value


def main(name: str, device: str, which: str) -> None:
    """Checks one door of the first or the second of two tensors that share a block.

    If `which` is "part", the second tensor is a small part of the first one.
    """
    door = DOORS[name]
    other = "cpu" if device == "cuda" else "cuda"
    torch.cuda.init()
    elements = (1 << 20) if which == "part" else (1 << 18)
    made = torch.arange(elements, dtype=torch.int32, device=device if which == "first" else other)
    moved = made[: 1 << 18].to(other if which == "first" else device)
    tensor, partner = (made, moved) if which == "first" else (moved, made)
    assert _copied(door.reason) == 0 and tensor.device.type == device

    kept = door.take(tensor)
    address = door.address(kept)
    _write(address, -7)
    assert (tensor[0].item(), partner[0].item()) == (-7, 0), (tensor[0], partner[0])

    copied = _copied(door.reason)
    later = tensor.to(other)
    assert _copied(door.reason) == copied + 1, "the move shares a block whose address has left"
    _write(address, -8)
    assert (tensor[0].item(), later[0].item()) == (-8, -7), (tensor[0], later[0])
    tensor.add_(1)  # torch's own writes stay at the address
    assert door.address(kept) == address == tensor.data_ptr()
    assert ctypes.c_int32.from_address(address + 4).value == 2
    torch.ops.uvmalloc.check_invariants()


if __name__ == "__main__":
    main(*sys.argv[1:])
