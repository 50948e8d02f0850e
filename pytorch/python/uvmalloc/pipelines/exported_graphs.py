"""Turns the module of an exported program into one list of operators, and analyses their memory.

The module is torch.export's own, `program.module()`. Its graph checks the inputs, reads weights as
attributes, and writes changed buffers and inputs back. So a run of its operators has all effects of
the module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A part of a program that torch.export keeps separate because it runs without gradients.
_PART = "wrap_with_set_grad_enabled"
# Composite operators with results that always have their own memory.
_FRESH = {
    "adaptive_avg_pool2d", "avg_pool1d", "batch_norm", "conv1d", "conv2d", "conv3d",
    "cross_entropy_loss", "group_norm", "layer_norm", "linear", "log_softmax", "matmul",
    "max_pool1d", "max_pool2d", "rms_norm", "scaled_dot_product_attention", "softmax",
}  # fmt: skip


class FlatModule:
    """A module's operators in order.

    Parts that only switch gradients on or off become part of the list, because a planned run
    computes no gradients. Raises ValueError, which names the part, for other parts (a branch).
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        import torch

        self.held: dict[Any, Any] = {}  # weights, buffers and constants, by node
        self._graph = torch.fx.Graph()
        # Results without their containers. with_body() puts the results into containers.
        self.outputs: list[Any] = list(self._copied(module, {}))
        self.inputs = [node for node in self._graph.nodes if node.op == "placeholder"]
        self.operators = [node for node in self._graph.nodes if node.op == "call_function"]

    def _copied(self, module: Any, copies: dict[Any, Any]) -> Any:
        """Copies the nodes that are not in `copies`, and returns the copy of the result."""
        import torch

        result: Any = None
        for node in module.graph.nodes:
            if node in copies or node.op == "call_module":  # a check; see with_body()
                continue
            if node.op == "output":
                result = torch.fx.node.map_arg(node.args[0], copies.__getitem__)
            elif node.op == "get_attr":
                value = operator.attrgetter(node.target)(module)
                if not isinstance(value, torch.nn.Module):
                    copies[node] = self._graph.node_copy(node)
                    self.held[copies[node]] = value
            elif str(node.target) == _PART:
                _, part, *arguments = node.args
                inner = operator.attrgetter(part.target)(module)
                given = [copies[each] if isinstance(each, torch.fx.Node) else each
                         for each in arguments]  # fmt: skip
                taken = [each for each in inner.graph.nodes if each.op == "placeholder"]
                copies[node] = self._copied(inner, dict(zip(taken, given, strict=True)))
            elif node.target is operator.getitem and isinstance(copies[node.args[0]], tuple | list):
                copies[node] = copies[node.args[0]][node.args[1]]
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                raise ValueError(f"plan_storage: the program has a part that is a '{node.target}'")
            else:
                copies[node] = self._graph.node_copy(node, copies.__getitem__)
        return result


def with_body(module: torch.fx.GraphModule, body: Callable[..., list[Any]]) -> torch.fx.GraphModule:
    """Returns the module with `body` instead of its operators.

    `body` receives the inputs and returns the results, both in flat order. The module still takes
    the program's arguments and runs the program's guards.
    """
    import torch
    from torch.utils import _pytree

    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "call_module"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    given = tuple(copy for copy in copies.values() if copy.op == "placeholder")
    codegen: Any = module.graph._codegen  # a _PyTreeCodeGen: exported programs have containers
    containers = codegen.pytree_info.out_spec
    # The generated code for containers fails if an argument is named "pytree".
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    module._planned_body = torch.nn.Module()
    module._planned_body.forward = lambda *given: _pytree.tree_unflatten(body(*given), containers)
    graph.output(graph.call_module("_planned_body", given))
    graph.set_codegen(codegen)
    module.graph = graph
    return module


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
    """Whether a result may share memory with an argument, according to the operator's schema.

    A composite operator, such as dropout, may also return an argument itself, which its schema does
    not say. The operators in _FRESH never do that.
    """
    schema = _schema_of(target)
    if schema is None:
        return True
    if any(result.alias_info is not None for result in schema.returns):
        return True
    return _is_composite(target) and target.overloadpacket.__name__ not in _FRESH


def aliased(node: Any) -> list[Any]:
    """Returns the values with which a result of the operator may share memory."""
    import torch

    if not may_alias(node.target):
        return []
    schema = _schema_of(node.target)
    if schema is None or _is_composite(node.target):
        return list(node.all_input_nodes)
    names = {argument.name for argument in schema.arguments if argument.alias_info is not None}
    positional = zip(schema.arguments, node.args, strict=False)  # defaults may be missing
    found: list[Any] = []
    for name, value in [(each.name, value) for each, value in positional] + [*node.kwargs.items()]:
        if name in names:
            torch.fx.node.map_arg(value, found.append)
    return found


def escaping(operators: Sequence[Any], outputs: Sequence[Any]) -> set[Any]:
    """Returns values that must not be in planned memory, because the next run overwrites it.

    These are the program's results, values that results may be views of, and values that an
    operator may reshape in place.
    """
    import torch

    found = {each for each in outputs if isinstance(each, torch.fx.Node)}
    for node in reversed(operators):
        schema = _schema_of(node.target)
        may_resize = schema is not None and any(each.is_out for each in schema.arguments)
        if may_resize or torch.Tag.inplace_view in getattr(node.target, "tags", ()):
            found.update(node.all_input_nodes)
        if node in found:
            found.update(aliased(node))
    return found


def is_alias(node: Any) -> bool:
    """Whether the result shares an argument's memory, as far as the program says.

    Such a result needs no place. If a run shows that the result does not share the memory, the run
    gives the result its own memory.
    """
    if not may_alias(node.target) or node.target is operator.getitem:
        return False
    schema = _schema_of(node.target)
    return schema is not None and (not _is_composite(node.target) or _shares_memory(node))


def _shares_memory(node: Any) -> bool:
    """Runs a composite operator on tensors without data: strides decide whether it copies."""
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
    except Exception:  # for example an unknown size; at worst, a place stays unused
        return False
    memory = {tensor.untyped_storage()._cdata for tensor in given}
    return bool(found) and all(each.untyped_storage()._cdata in memory for each in found)


def _is_composite(target: Any) -> bool:
    """Whether the operator is implemented with other operators."""
    import torch

    return torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def out_variant(target: Any, device: torch.device) -> Callable[..., Any] | None:
    """Returns the overload that writes one result to `out`, if the device has a kernel for it.

    Other overloads compute elsewhere and copy, which saves nothing. Composite operators are
    excluded: their `out` overload may compute differently, with different bits in the result.
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
