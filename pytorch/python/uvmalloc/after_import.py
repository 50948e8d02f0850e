"""Runs actions after the import of a module.

libuvmalloc_preload.so contains the text of this file, followed by queues.py and torch_names.py
(pytorch/interpose/CMakeLists.txt). So this file imports only the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Calls actions[name](module) once for each name: now, or when the module is complete."""
    _AfterImport(actions).watch()


class _AfterImport(MetaPathFinder):
    """Finds the watched modules through the other finders. Runs an action after a module's code."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self.actions = actions

    def watch(self) -> None:
        for name in list(self.actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.actions.pop(name)(module)
        if self.actions:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.actions:
            return None
        action = self.actions.pop(name)
        if not self.actions:
            sys.meta_path.remove(self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in _others(self))), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _followed_by(spec.loader.exec_module, action)
        return spec


def _others(finder: MetaPathFinder) -> list[Any]:
    return [other for other in sys.meta_path if other is not finder]


def _followed_by(
    run: Callable[[ModuleType], None], action: Callable[[ModuleType], None]
) -> Callable[[ModuleType], None]:
    def both(module: ModuleType) -> None:
        run(module)
        action(module)

    return both
