"""The symbolic sizes of an exported program, as the variables and expressions of a plan.

torch.export writes sizes as sympy expressions; plans write them as text
(storage/size_expression.hpp).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class _Shown:
    """Where a symbolic size is seen: an input is, or has a dimension of, factor * size + rest."""

    node: Any
    dimension: int | None  # None: the input is a number
    factor: int
    rest: int

    def value(self, given: Any) -> int:
        seen = given if self.dimension is None else given.shape[self.dimension]
        return (int(seen) - self.rest) // self.factor


class Symbols:
    """The symbolic sizes of a program: the variables of its plan."""

    def __init__(self, program: Any, graph: torch.fx.Graph, upper_bounds: dict[str, int]) -> None:
        self._where: dict[Any, _Shown] = {}
        self._ranges: dict[Any, tuple[int, int]] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self._look_at(node)
        known = {str(symbol) for symbol in self._where}
        unknown = sorted(set(upper_bounds) - known)
        if unknown:
            raise ValueError(
                f"plan_storage: the program has no symbolic size '{unknown[0]}'; it has: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        for symbol in self._where:
            self._ranges[symbol] = self._range(program, symbol, upper_bounds)
        self._names = {symbol: str(symbol) for symbol in self._where}

    def _look_at(self, node: Any) -> None:
        import torch

        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self._note(value.node.expr, node, None)
        if not isinstance(value, torch.Tensor):
            return
        for dimension, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                self._note(size.node.expr, node, dimension)

    def _note(self, expression: Any, node: Any, dimension: int | None) -> None:
        """An input's size shows a symbol if it is factor * symbol + rest."""
        if len(expression.free_symbols) != 1:
            return
        (symbol,) = expression.free_symbols
        rest = expression.subs(symbol, 0)
        factor = expression.subs(symbol, 1) - rest
        is_linear = (factor * symbol + rest - expression).expand() == 0
        if is_linear and factor.is_Integer and factor != 0:
            self._where.setdefault(symbol, _Shown(node, dimension, int(factor), int(rest)))

    @staticmethod
    def _range(program: Any, symbol: Any, upper_bounds: dict[str, int]) -> tuple[int, int]:
        constraint = program.range_constraints.get(symbol)
        lower = 0 if constraint is None else max(0, int(constraint.lower))
        if str(symbol) in upper_bounds:
            return lower, upper_bounds[str(symbol)]
        upper = None if constraint is None else constraint.upper
        if upper is None or not upper.is_Integer or int(upper) >= 1 << 31:
            raise ValueError(
                f"plan_storage: the symbolic size '{symbol}' has no upper bound. Give one with "
                f"Dim(..., max=...), or upper_bounds={{'{symbol}': ...}}"
            )
        return lower, int(upper)

    def variables(self) -> list[dict[str, Any]]:
        return [
            {"name": self._names[symbol], "lower": lower, "upper": upper}
            for symbol, (lower, upper) in self._ranges.items()
        ]

    def values(self, bound: Mapping[Any, Any]) -> tuple[int, ...]:
        """The sizes of one run."""
        return tuple(shown.value(bound[shown.node]) for shown in self._where.values())

    def are_above(self, given: Sequence[int]) -> bool:
        """Whether all are in range but for some that are above it."""
        return all(
            value >= lower for value, (lower, _) in zip(given, self._ranges.values(), strict=True)
        )

    def size_bytes(self, value: torch.Tensor) -> str:
        """An expression of what the tensor's storage takes: up to its last element."""
        terms = [
            f"max(0, {_text(size)} - 1) * ({_text(stride)})"
            for size, stride in zip(value.shape, value.stride(), strict=True)
        ]
        elements = " + ".join(["1", *terms])
        return f"({elements}) * {value.element_size()}"


def _text(size: Any) -> str:
    """A size as an infix expression. ValueError for an operation that plans do not have."""
    if isinstance(size, int):
        return str(size)
    return _expression(size.node.expr)


def _expression(expression: Any) -> str:
    import sympy

    if expression.is_Integer:
        return str(int(expression)) if expression >= 0 else f"(0 - {-int(expression)})"
    if expression.is_Symbol:
        return str(expression)
    parts = [_expression(part) for part in expression.args if not isinstance(expression, sympy.Pow)]
    name = type(expression).__name__
    if expression.is_Add:
        return "(" + " + ".join(parts) + ")"
    if expression.is_Mul:
        return "(" + " * ".join(parts) + ")"
    if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and expression.exp > 0:
        return "(" + " * ".join([_expression(expression.base)] * int(expression.exp)) + ")"
    if name in ("FloorDiv", "CleanDiv"):
        return f"({parts[0]} / {parts[1]})"
    if name in ("Mod", "PythonMod"):
        return f"({parts[0]} % {parts[1]})"
    if name in ("Max", "Min"):
        text = parts[0]
        for part in parts[1:]:
            text = f"{name.lower()}({text}, {part})"
        return text
    raise ValueError(f"plan_storage: a size is '{expression}'; {name} has no form in a plan")
