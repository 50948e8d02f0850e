"""Runs a torch.export program from one arena: all intermediate tensors have planned places.

torch.export has found a range for each symbolic size of the program. The packer finds places for
the largest sizes (pipelines/plans/storage_plan.hpp). So one arena serves every size within the
ranges. Memory backs the parts of the arena that runs have used.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uvmalloc.pipelines.calls import Plan
from uvmalloc.pipelines.exported_graphs import (
    FlatModule,
    aliased,
    escaping,
    is_alias,
    may_alias,
    out_variant,
    tensors_of,
    with_body,
)
from uvmalloc.pipelines.plan_arena import PlanArena
from uvmalloc.pipelines.plan_sizes import Symbols

if TYPE_CHECKING:
    import torch

_VERSION = 1
_ALIGNMENT_BYTES = 512
_CACHED_VIEWS = 64
_POLICIES = ("refuse", "fall back")


def plan_storage(
    exported_program: torch.export.ExportedProgram,
    *,
    upper_bounds: Mapping[str, int] | None = None,
    beyond_bound: str = "refuse",
    effort: float = 1.0,
) -> PlannedProgram:
    """Plans the memory of an exported program. Call the result like the program's module.

        program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: Dim("n", max=64)}})
        planned = uvmalloc.plan_storage(program)
        y = planned(x)

    Intermediate tensors are in one arena, on the device that holds most of them. If sizes vary, the
    arena takes memory, in pages of 2 MiB, only for the places that runs have used so far. The
    program's results have their own memory. The results are those of `program.module()`, bit for
    bit: the same operators run on the same values in the same order. Like the module, a run checks
    the program's guards, and writes to the buffers and inputs that the program writes to. A run
    computes no gradients.

    Runs in several threads, or on several streams, take turns. Replays of a run that was captured
    in a CUDA graph use the same memory: order them, and other runs, like writes to one tensor.

    Args:
        exported_program: with or without dynamic shapes.
        upper_bounds: the largest values of symbolic sizes, by their names in the program, for
            example {"s0": 64}. Needed for sizes that have no bound in the program.
        beyond_bound: what a run does if its sizes are above `upper_bounds`. "refuse": raises
            ValueError, which names the size. "fall back": this run's intermediate tensors have
            their own memory. A size that the program itself does not accept is always an error.
        effort: a factor for the time that the search for places may take.

    Raises:
        TypeError: `exported_program` is not a program of torch.export.
        ValueError: a symbolic size has no upper bound; the program has a branch or a loop; a name
            or policy is unknown. The message names it.

    A run raises the errors of `program.module()`, before anything is computed: AssertionError for a
    guard, ValueError for arguments with another structure.
    """
    import torch

    if not isinstance(exported_program, torch.export.ExportedProgram):
        raise TypeError(
            f"plan_storage: the program is a {type(exported_program).__name__}; accepted: what "
            "torch.export.export(model, inputs) returns"
        )
    if not isinstance(upper_bounds, Mapping | None):
        raise TypeError(
            f"plan_storage: upper_bounds is {upper_bounds!r}; accepted: sizes by name, for example "
            '{"s0": 64}'
        )
    if beyond_bound not in _POLICIES:
        raise ValueError(
            f"plan_storage: beyond_bound is {beyond_bound!r}; accepted: {', '.join(_POLICIES)}"
        )
    return PlannedProgram(exported_program, dict(upper_bounds or {}), beyond_bound, effort)


@dataclasses.dataclass
class _Step:
    """One operator of the program."""

    node: Any
    places: list[int | None]  # storage of each result tensor; None: its own memory
    may_alias: bool  # the result may be a view of an argument
    out: Callable[..., Any] | None  # overload that writes the result to a given tensor
    frees: list[Any]  # values that no later step uses


# Tensors of the arena, by step and by result of the step.
_Views = dict[tuple[int, int], "torch.Tensor"]


class PlannedProgram:
    """An exported program with planned places for intermediate tensors. Any thread may call it."""

    def __init__(
        self, program: Any, upper_bounds: dict[str, int], beyond_bound: str, effort: float
    ) -> None:
        module = program.module()
        self._flat = FlatModule(module)
        self._beyond_bound = beyond_bound
        self._symbols = Symbols(program, self._flat.inputs, upper_bounds)
        self._device = self._device_of()
        self._steps, self._storages = self._read()
        description = {
            "uvmalloc_storage_plan": _VERSION,
            "alignment_bytes": _ALIGNMENT_BYTES,
            "variables": [],
            "storages": self._storages,
        }
        self.plan = Plan.make(json.dumps(description), effort)
        self._arena = PlanArena(self.plan, self._device, self._symbols.vary)
        self._views: dict[Any, _Views] = {}  # by the _conditions() of a run
        self.view_hits = self.view_misses = self.fall_backs = 0
        # The module is part of a reference cycle, so it must not keep the arena alive.
        run = weakref.WeakMethod(self._run)

        def body(*given: Any) -> list[Any]:
            method = run()
            assert method is not None
            return method(*given)

        self._module = with_body(module, body)

    @property
    def arena_bytes(self) -> int:
        return self.plan.arena_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the arena holds, which release() gives back."""
        return self._arena.held_bytes

    def release(self) -> None:
        """Gives the arena's memory back. The next run takes memory again.

        Waits for a run in another thread, and for the device. Do not replay a run that was captured
        in a CUDA graph afterwards. Raises RuntimeError while a stream of this thread captures.
        """
        with self._arena.turn():
            self._arena.release()
            self._views.clear()

    @property
    def lower_bound_bytes(self) -> int:
        """The most bytes of intermediate tensors in use at one step, for sizes at the bounds."""
        return self.plan.lower_bound_bytes

    def to_csv(self) -> str:
        """Returns the packing problem at the bounds: CSV lines of id, lower, upper, size."""
        lines = ["id,lower,upper,size"]
        for storage, most in zip(self._storages, self.plan.most_bytes, strict=True):
            lines.append(f"{storage['id']},{storage['first_use']},{storage['end_use']},{most}")
        return "\n".join(lines) + "\n"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        # Torch's guards cannot run in two threads at the same time, so they run inside the turn.
        with torch.no_grad(), self._arena.turn():
            return self._module(*args, **kwargs)

    # ---- what the program says

    def _device_of(self) -> torch.device:
        import torch

        devices = collections.Counter(
            value.device
            for node in self._flat.operators
            for value in tensors_of(node.meta.get("val"))
        )
        return devices.most_common(1)[0][0] if devices else torch.device("cpu")

    def _read(self) -> tuple[list[_Step], list[dict[str, Any]]]:
        """Returns the steps, and the storages that the steps write, with their lifetimes."""
        operators = self._flat.operators
        escapes = escaping(operators, self._flat.outputs)
        last_use = self._last_uses()
        frees: dict[int, list[Any]] = {}
        for node, number in last_use.items():
            frees.setdefault(number, []).append(node)
        steps: list[_Step] = []
        storages: list[dict[str, Any]] = []
        for number, node in enumerate(operators):
            places: list[int | None] = []
            has_no_place = node in escapes or node.target is operator.getitem or is_alias(node)
            for index, value in enumerate(tensors_of(node.meta.get("val"))):
                most_bytes = None if has_no_place else self._most_bytes(value)
                if most_bytes is None:
                    places.append(None)
                    continue
                places.append(len(storages))
                storages.append(
                    {
                        "id": f"{node.name}.{index}" if index else node.name,
                        "size": str(most_bytes),
                        "first_use": number,
                        "end_use": last_use[node] + 1,
                    }
                )
            steps.append(
                _Step(
                    node,
                    places,
                    may_alias(node.target),
                    out_variant(node.target, self._device),
                    frees.get(number, []),
                )
            )
        return steps, storages

    def _most_bytes(self, value: torch.Tensor) -> int | None:
        import torch

        if value.layout != torch.strided or value.device != self._device:
            return None
        return self._symbols.most_bytes(value)

    def _last_uses(self) -> dict[Any, int]:
        """Returns the last step that uses each value, or may use its memory through a view."""
        import torch

        operators = self._flat.operators
        last: dict[Any, int] = {
            node: len(operators) for node in self._flat.outputs if isinstance(node, torch.fx.Node)
        }
        for number, node in reversed(list(enumerate(operators))):
            until = last.setdefault(node, number)
            views = set(aliased(node))
            for argument in node.all_input_nodes:
                use = until if argument in views else number
                last[argument] = max(last.get(argument, 0), use)
        return last

    # ---- a run

    def _run(self, *given: Any) -> list[Any]:
        """Runs the steps on the flat inputs, and returns the results in flat order."""
        import torch

        views, may_write_out = self._views_for(given)
        values = {**self._flat.held, **dict(zip(self._flat.inputs, given, strict=True))}
        for number, step in enumerate(self._steps):
            arguments = torch.fx.node.map_arg(step.node.args, values.__getitem__)
            options = torch.fx.node.map_arg(step.node.kwargs, values.__getitem__)
            place = views.get((number, 0)) if views and may_write_out else None
            if place is not None and step.out is not None:
                values[step.node] = step.out(*arguments, **options, out=place)
            else:
                result = step.node.target(*arguments, **options)
                if views is not None and any(each is not None for each in step.places):
                    result = self._placed(number, result, (arguments, options), views)
                values[step.node] = result
            for node in step.frees:
                values.pop(node, None)
        return [
            values[each] if isinstance(each, torch.fx.Node) else each for each in self._flat.outputs
        ]

    def _placed(self, number: int, result: Any, arguments: Any, views: _Views) -> Any:
        """Returns the result at its planned places. A view of an argument is not moved."""
        import torch
        from torch.utils import _pytree

        tensors = tensors_of(result)
        if self._steps[number].may_alias:
            own, others = _memory(tensors), _memory(_pytree.tree_leaves(arguments))
            if len(own) < len(tensors) or not own.isdisjoint(others):
                return result
        placed = []
        for index, tensor in enumerate(tensors):
            at = self._place(number, index, tensor, views)
            placed.append(tensor if at is None else at.copy_(tensor))
        if not isinstance(result, tuple | list):
            return placed[0]
        rest = iter(placed)
        return type(result)(
            next(rest) if isinstance(item, torch.Tensor) else item for item in result
        )

    def _place(
        self, number: int, index: int, like: torch.Tensor, views: _Views
    ) -> torch.Tensor | None:
        """Returns the arena's tensor for a result like `like`, or None if it has no place."""
        known = views.get((number, index))
        if known is not None and _looks(known) == _looks(like):
            return known
        storage = self._steps[number].places[index]
        made = None if storage is None else self._arena.tensor(storage, like)
        if made is not None:
            views[number, index] = made
        return made

    def _views_for(self, given: Sequence[Any]) -> tuple[_Views | None, bool]:
        """Returns the views for a run, and whether operators may write to the views directly.

        Returns None instead of views if sizes are above the bounds and the run falls back.
        """
        conditions, is_autocast = _conditions(given, self._device)
        known = self._views.get(conditions)
        if known is not None:
            self.view_hits += 1
            return known, not is_autocast
        self.view_misses += 1
        beyond = self._symbols.beyond(given)
        if beyond is not None:
            if self._beyond_bound == "refuse":
                raise ValueError(f"plan_storage: {beyond}")
            self.fall_backs += 1
            return None, False
        if len(self._views) >= _CACHED_VIEWS:
            self._views.pop(next(iter(self._views)))
        return self._views.setdefault(conditions, {}), not is_autocast


def _memory(values: Sequence[Any]) -> set[int]:
    return {tensor.untyped_storage()._cdata for value in values for tensor in tensors_of(value)}


def _looks(value: Any) -> Any:
    """Returns a key. Inputs with equal keys give an operator's results the same layout."""
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value), value
    strides = value.stride() if value.layout == torch.strided else value.layout
    return type(value), value.dtype, value.device, value.shape, strides


def _conditions(given: Sequence[Any], device: torch.device) -> tuple[Any, bool]:
    """Returns what determines the layout of a run's results, and whether autocast is on.

    Autocast casts for an operator's usual overload, but not for the overload that writes to `out`.
    """
    import torch

    casts = [
        (kind, torch.get_autocast_dtype(kind))
        for kind in sorted({"cpu", device.type})
        if torch.is_autocast_enabled(kind)
    ]
    looks = tuple(_looks(value) for value in given)
    return (looks, torch.get_default_dtype(), tuple(casts)), bool(casts)
