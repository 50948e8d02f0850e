"""Offload hooks of accelerate whose modules sleep and wake as groups (docs/reference/groups.md)."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from uvmalloc.after_import import after_import
from uvmalloc.groups import Group, group_of
from uvmalloc.memory import enabled, region

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_groups: weakref.WeakKeyDictionary[torch.nn.Module, Group] = weakref.WeakKeyDictionary()


def offload_hooks() -> None:
    """Makes accelerate's hooks for whole modules move their modules as groups.

    This concerns `accelerate.cpu_offload_with_hook` and what is built on it, such as
    `enable_model_cpu_offload` of diffusers. The parameters and buffers of an offloaded module then
    stay tensors of the device and keep their addresses: the module's group sleeps. Weights that
    are only read leave the device without a copy. Call it before or after hooks are made.

    In a program without uvmalloc, the hooks work as before. Raises ImportError without accelerate.
    """
    import torch
    from accelerate.hooks import CpuOffload

    if getattr(CpuOffload.init_hook, "is_of_uvmalloc", False):
        return
    after_import({"diffusers.pipelines.pipeline_utils": _keep_hooks_of_pipelines})
    CpuOffload.init_hook = _offload(CpuOffload.init_hook)
    CpuOffload.pre_forward = torch.compiler.disable(_bring(CpuOffload.pre_forward))


def _is_offloaded_by_group(hook: Any) -> bool:
    import torch

    device = hook.execution_device
    return enabled() and (isinstance(device, int) or torch.device(device).type == "cuda")


def _group_for(module: torch.nn.Module, hook: Any) -> Group:
    """Returns the module's group, with all tensors of the module, which are on the device."""
    found = _groups.get(module)
    if found is None:
        found = _groups[module] = group_of(module).configure(copies="kept")
    if any(each.device.type == "cpu" for each in (*module.parameters(), *module.buffers())):
        with region(policy="driver"):  # the pages stay where they are until the group wakes
            module.to(hook.execution_device)
    return found.add(module)


def _offload(stock: Any) -> Any:
    @functools.wraps(stock)
    def init_hook(hook: Any, module: torch.nn.Module) -> Any:
        if not _is_offloaded_by_group(hook):
            return stock(hook, module)
        _group_for(module, hook).sleep()
        return module

    init_hook.is_of_uvmalloc = True  # type: ignore[attr-defined]
    return init_hook


def _bring(stock: Any) -> Any:
    @functools.wraps(stock)
    def pre_forward(hook: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not _is_offloaded_by_group(hook):
            return stock(hook, module, *args, **kwargs)
        from accelerate.utils import send_to_device

        if hook.prev_module_hook is not None:
            hook.prev_module_hook.offload()
        _group_for(module, hook).wake()
        device = hook.execution_device
        return send_to_device(args, device), send_to_device(kwargs, device)

    return pre_forward


def _keep_hooks_of_pipelines(diffusers: ModuleType) -> None:
    """At the end of a call, pipelines of diffusers move all modules to the CPU and make new hooks.

    If the modules are groups, the old hooks offload them instead.
    """
    stock = diffusers.DiffusionPipeline.maybe_free_model_hooks

    @functools.wraps(stock)
    def maybe_free_model_hooks(pipeline: Any) -> Any:
        hooks = getattr(pipeline, "_all_hooks", [])
        if not hooks or any(hook.model not in _groups for hook in hooks):
            return stock(pipeline)
        pipeline.enable_model_cpu_offload = lambda **_: [hook.offload() for hook in hooks]
        try:
            return stock(pipeline)
        finally:
            del pipeline.enable_model_cpu_offload

    diffusers.DiffusionPipeline.maybe_free_model_hooks = maybe_free_model_hooks
