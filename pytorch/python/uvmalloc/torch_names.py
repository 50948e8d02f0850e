"""RFC-0023's names in torch: the functions of torch.cuda and the methods of torch.Tensor.

uvmalloc contains this file and runs it inside `import torch`. So a program under the library
has the functions without importing the package. In any other program, `import uvmalloc` adds them,
and `set_enabled_uvm` then loads the library. This file imports only the standard library, and the
files that the library contains before this one. It adds names and changes none. Without
uvmalloc, calls raise an error that says how to get it. This file also registers a function
with which torch.load moves a storage to a device without a copy.

The methods of torch.Tensor are added on request: by `import uvmalloc`, `set_enabled_uvm` or
`set_enabled_uvm_move_on_copy`. Other libraries look for attributes of tensors. Setting a variable
must not change which attributes they find.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from uvmalloc.after_import import after_import
from uvmalloc.queues import watch_queues

if TYPE_CHECKING:
    import torch

_FUNCTIONS = (
    "get_enabled_uvm",
    "set_enabled_uvm",
    "get_enabled_uvm_move_on_copy",
    "set_enabled_uvm_move_on_copy",
)


def set_enabled_uvm(enabled: bool) -> None:
    """Switches unified memory on: from now on, tensors are created in managed memory.

    Existing tensors are not changed. CPU tensors below UVMALLOC_HOST_THRESHOLD (1 MiB) are still
    created in ordinary memory; `Tensor.manage_memory` manages one of any size. Unified memory
    cannot be switched off again. Any thread may call.

    Raises:
        TypeError: `enabled` is not a bool.
        RuntimeError: there is no device, no libuvmalloc_preload.so, or no plugin for this torch; or
            `enabled` is False and unified memory is on.
    """
    _require_bool("set_enabled_uvm", enabled)
    if not enabled:
        if get_enabled_uvm():
            raise RuntimeError(
                "unified memory cannot be switched off once it is on: tensors live in it. Run the "
                "program without PYTORCH_ENABLE_UNIFIED_MEMORY and set_enabled_uvm(True)"
            )
        return
    reason = _enable_in_torch()
    if reason is not None:
        raise RuntimeError(f"unified memory cannot be enabled: {reason}")
    follow_torch()
    add_methods()


def get_enabled_uvm() -> bool:
    """Whether tensors are created in managed memory: it was switched on, and there is a device.

    Initialises nothing. Before the program has initialised CUDA, True only means that the machine
    has a driver.
    """
    return bool(_flag("uvmalloc_is_enabled"))


def set_enabled_uvm_move_on_copy(enabled: bool) -> None:
    """Sets whether `Tensor.to` returns the same memory if only a managed tensor's device changes.

    True: a tensor and the result of `to` see each other's writes. False: `to` also moves without
    copying, but the result behaves like a copy. UVMALLOC_MOVE sets the initial value. The flag
    belongs to the process, and takes effect while unified memory is enabled.

    Raises:
        TypeError: `enabled` is not a bool.
        RuntimeError: `enabled` is True, and there is no libuvmalloc_preload.so in this process.
    """
    name = "set_enabled_uvm_move_on_copy"
    _require_bool(name, enabled)
    if enabled or get_enabled_uvm_move_on_copy():
        _native(name, "uvmalloc_set_move_on_copy", ctypes.c_int, ctypes.c_int)(enabled)
    if enabled:
        add_methods()


def get_enabled_uvm_move_on_copy() -> bool:
    """Whether `Tensor.to` returns the same memory if only a managed tensor's device changes."""
    return bool(_flag("uvmalloc_move_on_copy"))


def is_managed(self: torch.Tensor) -> bool:
    """is_managed() -> bool

    Whether the tensor is in managed memory. False for a tensor without bytes.
    """
    operators = _operators()
    return operators is not None and operators.is_managed(self)


def manage_memory(self: torch.Tensor) -> torch.Tensor:
    """manage_memory() -> Tensor

    Returns a differentiable copy in managed memory on the same device, made on the current stream.
    Returns the tensor itself if it is managed.

    Raises RuntimeError if unified memory is not enabled, or the tensor is not strided.
    """
    operators = _operators()
    if operators is None:
        raise RuntimeError(
            "manage_memory: unified memory is not enabled; call torch.cuda.set_enabled_uvm(True)"
        )
    managed: torch.Tensor = operators.manage_memory(self)
    return managed


def unmanage_memory(self: torch.Tensor) -> torch.Tensor:
    """unmanage_memory() -> Tensor

    Returns a differentiable copy in ordinary memory on the same device, made on the current stream:
    memory of malloc for a CPU tensor, of torch's own allocator for a CUDA tensor. Returns the
    tensor itself if it is not managed.
    """
    operators = _operators()
    return self if operators is None else operators.unmanage_memory(self)


def uvm_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """uvm_to(...) -> Tensor

    Calls `Tensor.to` with the arguments, as if `enabled_uvm_move_on_copy` were set for this call.
    If only the device of a managed tensor changes, the result is the same memory.
    """
    alias = library_function("uvmalloc_set_thread_move_on_copy", ctypes.c_int, ctypes.c_int)
    if alias is None:
        return self.to(*args, **kwargs)
    before = alias(1)
    try:
        return self.to(*args, **kwargs)
    finally:
        alias(before)


def to_managed(self: torch.Tensor, manage: bool | None, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to(..., manage=)`: True moves into managed memory, False moves out of it."""
    if manage is None:
        return self.to(*args, **kwargs)
    if not isinstance(manage, bool):
        raise TypeError(f"to(): argument 'manage' must be bool, not {type(manage).__name__}")
    if not manage:
        return unmanage_memory(self.to(*args, **kwargs))
    # Makes `to` create a managed result, which manage_memory() returns unchanged.
    host = _native("to", "uvmalloc_set_host_managed", ctypes.c_int, ctypes.c_int)
    before = host(2)
    try:
        return manage_memory(self.to(*args, **kwargs))
    finally:
        host(before)


def restore_on_device(storage: torch.UntypedStorage, location: str) -> Any:
    """Moves a storage that torch.load has read to its device without a copy.

    Returns None if torch must move the storage in its own way. Only managed storages, of at least
    UVMALLOC_HOST_THRESHOLD, can be shared. The result is an alias: torch.load takes the result's
    address while it still holds the storage, so torch would copy a copy-on-write result. Because
    the result is an alias, the storage must have no tensor yet.
    """
    operators = _operators()
    torch = sys.modules["torch"]
    if (
        operators is None
        or not re.match("cuda($|:|[0-9])", location)
        or storage.device.type != "cpu"
        or torch._C._storage_Use_Count(storage._cdata) != 1
    ):
        return None
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    if not operators.can_move(whole):
        return None
    device = torch.device("cuda", torch.serialization.validate_cuda_device(location))
    return uvm_to(whole, device).untyped_storage()


class _Answer:
    """A method of tensors that also has its result as its truth: `if x.is_managed:` and
    `if x.is_managed():` are the same.

    Another library may read the name as its own flag, and set the flag on a tensor. bitsandbytes
    has `if getattr(tensor, "is_managed", False)`, for tensors that it allocates itself.
    """

    def __init__(self, function: Callable[..., bool]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> _Answer:
        return self if tensor is None else _Answer(MethodType(self.function, tensor))

    def __call__(self, *arguments: Any, **keywords: Any) -> bool:
        return self.function(*arguments, **keywords)

    def __bool__(self) -> bool:
        """The result; True for the method of the class, as for every function."""
        return not isinstance(self.function, MethodType) or self.function()


_METHODS = {
    "is_managed": _Answer(is_managed),
    "manage_memory": manage_memory,
    "unmanage_memory": unmanage_memory,
    "uvm_to": uvm_to,
}


def install() -> None:
    """Adds the functions once: now, or after the import of torch's modules."""
    after_import(
        {
            "torch._tensor": _follow_enabled_torch,
            "torch.cuda": _add_functions,
            "torch.serialization": _add_deserializer,
        }
    )


def add_methods() -> None:
    """Adds the methods of torch.Tensor, in the same way as install() adds the functions."""
    after_import({"torch._tensor": _add_methods})


def _add_functions(cuda: ModuleType) -> None:
    for module in (cuda, sys.modules["torch.cuda.memory"]):
        for name in _FUNCTIONS:
            if not hasattr(module, name):
                setattr(module, name, globals()[name])
                module.__all__.append(name)


def _add_methods(module: ModuleType) -> None:
    for name, method in _METHODS.items():
        if not hasattr(module.Tensor, name):
            setattr(module.Tensor, name, method)


def _follow_enabled_torch(module: ModuleType) -> None:
    if _flag("uvmalloc_is_in_torch"):
        follow_torch()


def follow_torch() -> None:
    """Makes the changes in Python that only a torch with unified memory needs."""
    take_manage_argument()
    _watch_addresses()
    watch_queues()


def _enable_in_torch() -> str | None:
    """Loads the library if needed, and switches it on. Returns None, or why that failed."""
    enable = library_function("uvmalloc_enable_in_torch", ctypes.c_char_p)
    if enable is None:
        # The library did not run this text, so the package exists and can be imported.
        from uvmalloc import errors, native

        try:
            enable = native.library().uvmalloc_enable_in_torch
        except errors.CommandError as error:
            return str(error)
        enable.restype = ctypes.c_char_p
    reason = enable()
    return None if reason is None else reason.decode()


def _add_deserializer(serialization: ModuleType) -> None:
    # Before torch's own entry for CUDA (priority 20). Torch cannot order two entries with the same
    # priority, and no other priority is a fraction.
    name = restore_on_device.__name__
    if all(getattr(entry[-1], "__name__", "") != name for entry in serialization._package_registry):
        serialization.register_package(19.5, lambda storage: None, restore_on_device)


def take_manage_argument() -> None:
    """Gives Tensor.to the argument `manage`. Calls without it only cost a look-up in the keywords.
    """
    take = getattr(ctypes.PyDLL(None), "uvmalloc_take_keyword", None)
    if take is not None:
        take.argtypes = [ctypes.py_object] * 3
        take.restype = ctypes.c_bool
        take(sys.modules["torch._tensor"].Tensor.to, "manage", to_managed)


def _watch_addresses() -> None:
    """Reports the tensors of functions that return an address without saying so in another way."""
    watch = getattr(ctypes.PyDLL(None), "uvmalloc_watch_address", None)
    if watch is None:
        return
    watch.argtypes = [ctypes.py_object]
    watch.restype = ctypes.c_bool
    torch_c = sys.modules["torch._C"]
    for owner, name in ((torch_c.TensorBase, "const_data_ptr"), (torch_c, "_data_address")):
        if hasattr(owner, name):
            watch(getattr(owner, name))


def _require_bool(function: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{function} expects a bool, but got {type(value).__name__}")


def _operators() -> Any:
    """Returns the plugin's operators, or None without the plugin."""
    namespace = sys.modules["torch"].ops.uvmalloc
    return namespace if hasattr(namespace, "manage_memory") else None


def _flag(name: str) -> int:
    function = library_function(name, ctypes.c_int)
    return 0 if function is None else function()


_found: dict[str, Callable[..., Any]] = {}


def library_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """Returns a function of this process's libuvmalloc_preload.so, or None if there is none."""
    function = _found.get(name)
    if function is None:
        function = getattr(ctypes.CDLL(None), name, None)
        if function is None:
            return None
        function.restype = result
        function.argtypes = list(arguments)
        _found[name] = function
    return function


def _native(wanted_by: str, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = library_function(name, result, *arguments)
    if function is None:
        raise RuntimeError(
            f"{wanted_by}: libuvmalloc_preload.so is not loaded in this process; "
            "start it with `uvmalloc "
            "run -- python ...`, or call torch.cuda.set_enabled_uvm(True) first"
        )
    return function


install()
