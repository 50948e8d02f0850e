"""uvmalloc.types declares the keys and values of stats(), and the package exports its results."""

from __future__ import annotations

import inspect
import json
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import uvmalloc
from uvmalloc.types import Stats

from tests.pytorch.conftest import Simulate

PROGRAM = """
import json, torch, uvmalloc
x = torch.ones(4 << 20).to('cuda')
y = x.to('cuda:1')
y += 1
torch.ones(3, 4).to('cuda')
uvmalloc.group('g').add(x)
uvmalloc.prefetch(x, 'cpu')
torch.cuda.synchronize()
print(json.dumps(uvmalloc.stats()))
"""


def faults(kind: Any, value: Any, at: str, seen: set[str]) -> list[str]:
    """Returns where the value differs from its type; adds the keys that it has to `seen`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        found = [f"{at}.{key}: not declared" for key in value.keys() - hints.keys()]
        found += [f"{at}.{key}: missing" for key in kind.__required_keys__ - value.keys()]
        for key in value.keys() & hints.keys():
            seen.add(f"{at}.{key}")
            found += faults(hints[key], value[key], f"{at}.{key}", seen)
        return found
    if origin is dict:
        return [fault for each in value.values() for fault in faults(arguments[1], each, at, seen)]
    if origin is list:
        return [fault for each in value for fault in faults(arguments[0], each, at, seen)]
    if origin is Literal:
        return [] if value in arguments else [f"{at}: {value!r}"]
    if origin in (Union, UnionType):
        return min((faults(each, value, at, seen) for each in arguments), key=len)
    kind = NoneType if kind is None else kind
    is_right = type(value) is kind or (kind is float and type(value) is int)
    return [] if is_right else [f"{at}: {value!r} is no {kind}"]


def test_a_report_has_the_declared_keys_and_types(simulate: Simulate) -> None:
    seen: set[str] = set()
    run = simulate(PROGRAM, devices=2, driver_version="13.5").check()
    own = json.loads(run.stdout)
    assert faults(Stats, own, "", seen) == []
    # A process that serves a program's own calls has some more.
    served = simulate(
        "import ctypes; ctypes.CDLL('libcudart.so.13').cudaMalloc("
        "ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))",
        environment={"UVMALLOC_CUDA": "1"},
    ).check()
    assert faults(Stats, served.report, "", seen) == []
    absent = {key for key in get_type_hints(Stats) if f".{key}" not in seen}
    assert absent <= {"reason", "compared"}, "declared, and in no report"


def test_results_and_errors_are_exported() -> None:
    exported = {getattr(uvmalloc, name) for name in uvmalloc.__all__}
    for function in exported:
        if inspect.isclass(function):
            continue
        result = inspect.signature(function).return_annotation
        if isinstance(result, str) and result.isidentifier():
            kind = getattr(inspect.unwrap(function), "__globals__", {}).get(result)
            assert not inspect.isclass(kind) or kind in exported, (function, result)
    assert uvmalloc.MissingLibraryError in exported
