"""Runs a program of torch.export from one arena: all intermediate tensors have planned places.

The program's symbolic sizes become the variables of a plan, with the ranges that torch.export has
found for them. The plan's size expressions are the shapes of the program's values
(storage/storage_plan.hpp). The packer finds places for the largest sizes, so one allocation serves
every size within the ranges.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uvmalloc.exported_graphs import (
    flat_graph,
    inputs_of,
    is_alias,
    may_alias,
    out_variant,
    tensors_of,
)
from uvmalloc.plan_sizes import Symbols
from uvmalloc.storage_calls import Plan

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
    """Plans the memory of an exported program; the result is called like the program's module.

        program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: Dim("n", max=64)}})
        planned = uvmalloc.plan_storage(program)
        y = planned(x)

    Intermediate tensors lie in one allocation, on the device of the program's weights, or of its
    first input. What the program returns has memory of its own. Results are those of the program,
    bit for bit: the same operators run on the same values in the same order. A run computes no
    gradients, and one thread may run it at a time.

    Args:
        exported_program: with or without dynamic shapes.
        upper_bounds: the largest value of symbolic sizes that have no bound in the program, by
            their name there, for example {"s0": 64}.
        beyond_bound: what a run does whose sizes are above the bounds. "refuse": ValueError that
            names the size. "fall back": this run's intermediate tensors have memory of their own.
        effort: multiplies how long places are searched for.

    Raises:
        ValueError: a symbolic size has no upper bound; a size cannot be written as an expression;
            an unknown name or policy. The message names it.
    """
    if beyond_bound not in _POLICIES:
        raise ValueError(
            f"plan_storage: beyond_bound is {beyond_bound!r}; accepted: {', '.join(_POLICIES)}"
        )
    return PlannedProgram(exported_program, dict(upper_bounds or {}), beyond_bound, effort)


@dataclasses.dataclass
class _Step:
    """One operator of the program."""

    node: Any
    function: Callable[..., Any]
    places: list[int | None]  # by tensor of its result: the storage; None: memory of its own
    may_alias: bool  # its result may be a view of an argument
    out: Callable[..., Any] | None  # writes its one result to a tensor that it is given
    frees: list[Any]  # values that nothing uses after it


class PlannedProgram:
    """An exported program whose intermediate tensors have planned places."""

    def __init__(
        self, program: Any, upper_bounds: dict[str, int], beyond_bound: str, effort: float
    ) -> None:
        self._program = program
        self._beyond_bound = beyond_bound
        self._graph = flat_graph(program)
        self._symbols = Symbols(program, self._graph, upper_bounds)
        self._inputs = inputs_of(program, self._graph)
        self._outputs = list(self._graph.output_node().args[0])
        self._device = self._device_of()
        self._steps, storages = self._read()
        description = {
            "uvmalloc_storage_plan": _VERSION,
            "alignment_bytes": _ALIGNMENT_BYTES,
            "variables": self._symbols.variables(),
            "storages": storages,
        }
        self.plan = Plan.make(json.dumps(description), effort)
        self._storages = storages
        self._arena: torch.Tensor | None = None
        # Tensors of the arena by the values of the symbolic sizes, and by step and result.
        self._views: dict[tuple[int, ...], dict[tuple[int, int], torch.Tensor]] = {}
        self.view_hits = self.view_misses = self.fall_backs = 0

    @property
    def arena_bytes(self) -> int:
        return self.plan.arena_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The most bytes of intermediate tensors that are in use at one step, at the bounds."""
        return self.plan.lower_bound_bytes

    def to_csv(self) -> str:
        """The packing problem at the bounds: lines of id, lower, upper, size."""
        lines = ["id,lower,upper,size"]
        for storage, most in zip(self._storages, self.plan.most_bytes, strict=True):
            lines.append(f"{storage['id']},{storage['first_use']},{storage['end_use']},{most}")
        return "\n".join(lines) + "\n"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.no_grad():
            return self._run(args, kwargs)

    # ---- what the program says

    def _device_of(self) -> torch.device:
        import torch

        for node in self._inputs.order:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                return value.device
        return torch.device("cpu")

    def _read(self) -> tuple[list[_Step], list[dict[str, Any]]]:
        """The steps, and the storages that they write, live until their last use."""
        nodes = [node for node in self._graph.nodes if node.op == "call_function"]
        number_of = {node: number for number, node in enumerate(nodes)}
        returned = {node for node in self._outputs if hasattr(node, "op")}
        last_use = self._last_uses(nodes, number_of, returned)
        steps: list[_Step] = []
        storages: list[dict[str, Any]] = []
        frees: dict[int, list[Any]] = {}
        for node, number in last_use.items():
            frees.setdefault(number, []).append(node)
        for number, node in enumerate(nodes):
            places: list[int | None] = []
            has_no_place = node in returned or node.target is operator.getitem or is_alias(node)
            for index, value in enumerate(tensors_of(node.meta.get("val"))):
                if has_no_place or not self._is_dense(value):
                    places.append(None)
                    continue
                places.append(len(storages))
                storages.append(
                    {
                        "id": f"{node.name}.{index}" if index else node.name,
                        "size": self._symbols.size_bytes(value),
                        "first_use": number,
                        "end_use": max(last_use.get(node, number), number) + 1,
                    }
                )
            steps.append(
                _Step(
                    node,
                    node.target,
                    places,
                    may_alias(node.target),
                    out_variant(node.target, self._device),
                    frees.get(number, []),
                )
            )
        return steps, storages

    def _is_dense(self, value: torch.Tensor) -> bool:
        import torch

        return value.layout == torch.strided and value.device == self._device

    def _last_uses(
        self, nodes: Sequence[Any], number_of: Mapping[Any, int], returned: set[Any]
    ) -> dict[Any, int]:
        """The last step that uses a value, or may use its memory by way of a view of it."""
        last: dict[Any, int] = {node: len(nodes) for node in returned}
        for node in reversed(nodes):
            number = number_of[node]
            until = max(last.get(node, number), number)
            passes_on = may_alias(node.target) or node.target is operator.getitem
            for argument in node.all_input_nodes:
                last[argument] = max(last.get(argument, 0), until if passes_on else number)
            last.setdefault(node, number)
        return last

    # ---- a run

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        import torch

        values = self._inputs.bind(self._program, args, kwargs)
        given = self._symbols.values(values)
        views = self._views_for(given)
        for number, step in enumerate(self._steps):
            arguments = torch.fx.node.map_arg(step.node.args, values.__getitem__)
            options = torch.fx.node.map_arg(step.node.kwargs, values.__getitem__)
            values[step.node] = (
                step.function(*arguments, **options)
                if views is None or all(place is None for place in step.places)
                else self._run_step(number, step, arguments, options, views)
            )
            for node in step.frees:
                values.pop(node, None)
        return self._result(values)

    def _run_step(
        self,
        number: int,
        step: _Step,
        arguments: Any,
        options: Any,
        views: dict[tuple[int, int], torch.Tensor],
    ) -> Any:
        """Its result lies at its places; a view of an argument stays where it is."""
        place = views.get((number, 0))
        if step.out is not None and place is not None:
            return step.out(*arguments, **options, out=place)
        result = step.function(*arguments, **options)
        memory = {
            tensor.untyped_storage()._cdata
            for argument in (*arguments, *options.values())
            for tensor in tensors_of(argument)
        }
        placed = []
        for index, tensor in enumerate(tensors_of(result)):
            is_view = step.may_alias and tensor.untyped_storage()._cdata in memory
            at = None if is_view else self._view(number, index, tensor, views)
            placed.append(tensor if at is None else at.copy_(tensor))
        if not isinstance(result, tuple | list):
            return placed[0] if placed else result
        rest = iter(placed)
        return type(result)(next(rest) if hasattr(item, "dtype") else item for item in result)

    def _view(
        self,
        number: int,
        index: int,
        like: torch.Tensor,
        views: dict[tuple[int, int], torch.Tensor],
    ) -> torch.Tensor | None:
        """The tensor of the arena for a result that looks like `like`; None if it has no place."""
        known = views.get((number, index))
        if known is not None and known.shape == like.shape and known.stride() == like.stride():
            return known
        storage = self._steps[number].places[index]
        if storage is None or self._arena is None:
            return None
        # Strides are the kernel's choice: they may be others than the program says.
        steps = zip(like.shape, like.stride(), strict=True)
        elements = 1 + sum((size - 1) * stride for size, stride in steps) if like.numel() else 0
        if elements * like.element_size() > self.plan.most_bytes[storage]:
            return None
        begin = self.plan.offsets[storage]
        part = self._arena[begin : begin + self.plan.most_bytes[storage]]
        made = part.view(like.dtype).as_strided(
            like.shape, like.stride(), begin // like.element_size()
        )
        views[number, index] = made
        return made

    def _views_for(self, given: tuple[int, ...]) -> dict[tuple[int, int], torch.Tensor] | None:
        """The views for these sizes; None where they are above the bounds: the run falls back."""
        known = self._views.get(given)
        if known is not None:
            self.view_hits += 1
            return known
        self.view_misses += 1
        try:
            self.plan.sizes(given)
        except ValueError as error:
            if self._beyond_bound == "refuse" or not self._symbols.are_above(given):
                raise ValueError(f"plan_storage: {error}") from None
            self.fall_backs += 1
            return None
        if self._arena is None:
            import torch

            self._arena = torch.empty(
                max(self.arena_bytes, 1), dtype=torch.uint8, device=self._device
            )
        if len(self._views) >= _CACHED_VIEWS:
            self._views.pop(next(iter(self._views)))
        return self._views.setdefault(given, {})

    def _result(self, values: Mapping[Any, Any]) -> Any:
        import torch
        from torch.utils import _pytree

        signature = self._program.graph_signature
        if any(spec.kind.name != "USER_OUTPUT" for spec in signature.output_specs):
            for spec, node in zip(signature.output_specs, self._outputs, strict=True):
                if spec.kind.name == "BUFFER_MUTATION":
                    self._inputs.lifted(self._program, spec.target).copy_(values[node])
        user = [
            values[node] if isinstance(node, torch.fx.Node) else node
            for spec, node in zip(signature.output_specs, self._outputs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]
        user = [self._own(value) for value in user]
        return _pytree.tree_unflatten(user, self._program.call_spec.out_spec)

    def _own(self, value: Any) -> Any:
        """Not in the arena, which the next run writes to."""
        if not tensors_of(value) or self._arena is None:
            return value
        is_in_arena = value.untyped_storage()._cdata == self._arena.untyped_storage()._cdata
        return value.clone() if is_in_arena else value
