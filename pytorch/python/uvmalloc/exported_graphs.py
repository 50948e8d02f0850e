"""The graph of an exported program, and what its operators do with memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A part of a program that torch.export keeps apart because it runs without gradients.
_PART = "wrap_with_set_grad_enabled"
# Composite operators whose results always have memory of their own.
_FRESH = {
    "adaptive_avg_pool2d", "avg_pool1d", "batch_norm", "conv1d", "conv2d", "conv3d",
    "cross_entropy_loss", "group_norm", "layer_norm", "linear", "log_softmax", "matmul",
    "max_pool1d", "max_pool2d", "rms_norm", "scaled_dot_product_attention", "softmax",
}  # fmt: skip


def flat_graph(program: Any) -> torch.fx.Graph:
    """The program's graph as one list of operators.

    Parts that only switch gradients on or off stand in their place: a planned run computes none.
    ValueError names a part of another kind, for example a branch.
    """
    import torch

    graph = torch.fx.Graph()
    graph.output(_copied(program.graph_module, graph, {}))
    return graph


def _copied(module: Any, graph: torch.fx.Graph, copies: dict[Any, Any]) -> Any:
    """Copies the nodes that `copies` does not have, and returns the copy of the result."""
    import torch

    result: Any = None
    for node in module.graph.nodes:
        if node in copies or node.op == "get_attr":
            continue
        if node.op == "output":
            result = torch.fx.node.map_arg(node.args[0], copies.__getitem__)
        elif str(node.target) == _PART:
            _, part, *arguments = node.args
            inner = getattr(module, part.target)
            given = [copies[each] if isinstance(each, torch.fx.Node) else each
                     for each in arguments]  # fmt: skip
            taken = [each for each in inner.graph.nodes if each.op == "placeholder"]
            copies[node] = _copied(inner, graph, dict(zip(taken, given, strict=True)))
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], tuple | list):
            copies[node] = copies[node.args[0]][node.args[1]]
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            raise ValueError(f"plan_storage: the program has a part that is a '{node.target}'")
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return result


def tensors_of(value: Any) -> list[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []


def _schema_of(target: Any) -> Any:
    return getattr(target, "_schema", None)


def may_alias(target: Any) -> bool:
    """Whether a result may lie in an argument's memory, as the operator's schema says.

    A composite operator may also give an argument back as it is, without its schema saying so:
    dropout does. Those of _FRESH never do.
    """
    schema = _schema_of(target)
    if schema is None:
        return True
    if any(result.alias_info is not None for result in schema.returns):
        return True
    return _is_composite(target) and target.overloadpacket.__name__ not in _FRESH


def is_alias(node: Any) -> bool:
    """Whether the result lies in an argument's memory, as far as the program says.

    It needs no place then. A run whose result lies elsewhere all the same gives it memory of its
    own.
    """
    if not may_alias(node.target) or node.target is operator.getitem:
        return False
    schema = _schema_of(node.target)
    return schema is not None and (not _is_composite(node.target) or _shares_memory(node))


def _shares_memory(node: Any) -> bool:
    """Runs a composite operator on tensors without data: it copies or not, as its strides say."""
    import torch

    results = tensors_of(node.meta.get("val"))
    arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    given = [
        tensor
        for argument in torch.utils._pytree.tree_leaves(arguments)
        for tensor in tensors_of(argument)
    ]
    mode = getattr(results[0], "fake_mode", None) if results else None
    if mode is None:
        return False
    try:
        with mode, torch.no_grad():
            found = tensors_of(node.target(*arguments[0], **arguments[1]))
    except Exception:  # a size that is not known: at worst a place that nobody uses
        return False
    memory = {tensor.untyped_storage()._cdata for tensor in given}
    return bool(found) and all(each.untyped_storage()._cdata in memory for each in found)


def _is_composite(target: Any) -> bool:
    """Whether it is written in terms of other operators."""
    import torch

    return torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def out_variant(target: Any, device: torch.device) -> Callable[..., Any] | None:
    """The overload that writes one result to `out`, where the device has a kernel of its own.

    Others compute elsewhere and copy, which saves nothing. A composite operator may compute in
    another way than its overload with `out`, with other bits.
    """
    import torch

    schema = _schema_of(target)
    if schema is None or len(schema.returns) != 1 or schema.is_mutable or _is_composite(target):
        return None
    if may_alias(target):
        return None
    key = "CUDA" if device.type == "cuda" else "CPU"
    packet = target.overloadpacket
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments]
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        outs = [argument for argument in arguments if argument.is_out]
        rest = [(each.name, str(each.type)) for each in arguments if not each.is_out]
        if len(outs) == 1 and outs[0].name == "out" and rest == wanted:
            has_own = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)
            return overload if has_own else None
    return None


class Inputs:
    """The placeholders: weights, which the program holds, and what a call is given."""

    def __init__(self, order: list[Any], specs: Mapping[str, Any]) -> None:
        self.order = order
        self._specs = specs

    def bind(self, program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Any, Any]:
        from torch.utils import _pytree

        wanted = program.call_spec.in_spec
        flat, found = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        if found != wanted:
            raise TypeError(f"plan_storage: the program takes {wanted}, and is given {found}")
        given = iter(flat)
        values = {}
        for node in self.order:
            spec = self._specs[node.name]
            is_user = spec.kind.name == "USER_INPUT"
            values[node] = next(given) if is_user else self.lifted(program, spec.target)
        return values

    @staticmethod
    def lifted(program: Any, name: str) -> Any:
        return program.state_dict[name] if name in program.state_dict else program.constants[name]


def inputs_of(program: Any, graph: torch.fx.Graph) -> Inputs:
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    return Inputs([node for node in graph.nodes if node.op == "placeholder"], specs)
