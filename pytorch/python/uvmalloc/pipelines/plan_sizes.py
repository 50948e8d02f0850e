"""The symbolic sizes of an exported program: their bounds, and their values in one run.

torch.export writes sizes as sympy expressions of symbols. Each symbol has a range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ENDLESS = 1 << 62  # larger bounds count as no bound: unbounded sizes have a bound near 2^63


@dataclasses.dataclass(frozen=True)
class _Shown:
    """An input that reveals a symbolic size: the input or a dimension is factor * size + rest."""

    input: int  # position in the flat inputs
    dimension: int | None  # None: the input is a number
    factor: int
    rest: int

    def value(self, given: Sequence[Any]) -> int:
        """Returns the size, or 0 for an input of another type: no guard checks the type."""
        seen = given[self.input]
        if self.dimension is not None:
            seen = dict(enumerate(getattr(seen, "shape", ()))).get(self.dimension)
        return (seen - self.rest) // self.factor if isinstance(seen, int) else 0


class Symbols:
    """The symbolic sizes of a program's inputs, with the bounds for the plan."""

    def __init__(
        self, program: Any, inputs: Sequence[Any], upper_bounds: Mapping[str, int]
    ) -> None:
        self._where: dict[Any, _Shown] = {}
        for place, node in enumerate(inputs):
            self._look_at(place, node.meta.get("val"))
        known = {str(symbol): symbol for symbol in self._where}
        unknown = sorted(set(upper_bounds) - set(known))
        if unknown:
            raise ValueError(
                f"plan_storage: the program has no symbolic size '{unknown[0]}'; it has: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        self._ranges: dict[Any, Any] = dict(program.range_constraints)
        for name, upper in upper_bounds.items():
            self._bound(known[name], upper)
        # The program's guards check the program's own bounds, so check only `upper_bounds`.
        self._limits = {known[name]: upper for name, upper in upper_bounds.items()}
        for symbol in self._where:
            if self._largest(symbol) is None:
                raise ValueError(
                    f"plan_storage: the symbolic size '{symbol}' has no upper bound. Give one with "
                    f"Dim(..., max=...), or upper_bounds={{'{symbol}': ...}}"
                )

    @property
    def vary(self) -> bool:
        return bool(self._where)

    def _look_at(self, place: int, value: Any) -> None:
        import torch

        if isinstance(value, torch.SymInt):
            self._note(value.node.expr, place, None)
        if not isinstance(value, torch.Tensor):
            return
        for dimension, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                self._note(size.node.expr, place, dimension)

    def _note(self, expression: Any, place: int, dimension: int | None) -> None:
        """Records that an input's size reveals a symbol, if the size is factor * symbol + rest."""
        if len(expression.free_symbols) != 1:
            return
        (symbol,) = expression.free_symbols
        rest = expression.subs(symbol, 0)
        factor = expression.subs(symbol, 1) - rest
        is_linear = (factor * symbol + rest - expression).expand() == 0
        if is_linear and factor.is_Integer and factor != 0:
            self._where.setdefault(symbol, _Shown(place, dimension, int(factor), int(rest)))

    def _bound(self, symbol: Any, upper: int) -> None:
        from torch.utils._sympy.value_ranges import ValueRanges

        if isinstance(upper, bool) or not isinstance(upper, int):
            raise ValueError(
                f"plan_storage: the upper bound of '{symbol}' is {upper!r}; "
                "accepted: a whole number"
            )
        known = self._ranges.get(symbol, ValueRanges.unknown_int())
        if upper < known.lower:
            raise ValueError(
                f"plan_storage: the upper bound of '{symbol}' is {upper}; accepted: at least "
                f"{known.lower}"
            )
        self._ranges[symbol] = ValueRanges(known.lower, min(known.upper, upper))

    def beyond(self, given: Sequence[Any]) -> str | None:
        """Returns a sentence about the first size of a run above its bound, or None."""
        for symbol, upper in self._limits.items():
            value = self._where[symbol].value(given)
            if value > upper:
                return f"the size '{symbol}' is {value}; accepted: at most {upper}"
        return None

    def most_bytes(self, value: torch.Tensor) -> int | None:
        """Returns the most bytes that the tensor's storage takes, up to its last element.

        Returns None if that has no bound, or if a size depends on the contents of tensors.
        """
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        if free_unbacked_symbols(value):
            return None
        elements = 1
        for size, stride in zip(value.shape, value.stride(), strict=True):
            most, step = self._most(size), self._most(stride)
            if most is None or step is None:
                return None
            elements += max(0, most - 1) * step
        return elements * value.element_size()

    def _most(self, size: Any) -> int | None:
        return size if isinstance(size, int) else self._largest(size.node.expr)

    def _largest(self, expression: Any) -> int | None:
        """Returns the upper bound of an expression, which may contain fractions, or None."""
        from torch.utils._sympy.value_ranges import bound_sympy

        upper = bound_sympy(expression, self._ranges).upper
        return int(upper) if upper.is_finite and upper < _ENDLESS else None
