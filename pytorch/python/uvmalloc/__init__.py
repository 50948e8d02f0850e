"""uvmalloc's Python package: functions for programs, here and in uvmalloc.pipelines.

uvmalloc._cli has the command line, and uvmalloc._trace works with traces.

Importing the package imports neither torch nor a native library. RFC-0023's functions, including
the methods of tensors, are added to torch once torch is imported too (uvmalloc.torch_names).
"""

import sys as _sys

from uvmalloc.errors import MissingLibraryError
from uvmalloc.groups import Group, GroupFigures, group, group_of, groups
from uvmalloc.growing import Growing, growing
from uvmalloc.loading import load_safetensors
from uvmalloc.memory import advise, enabled, prefetch, region, residency, set_budget, stats
from uvmalloc.native import mark
from uvmalloc.offloading import offload_hooks
from uvmalloc.pipelines.pipeline import Pipeline, pipeline
from uvmalloc.pipelines.storage_plans import PlannedProgram, plan_storage
from uvmalloc.pipelines.streaming import StreamedCheckpoint, stream_safetensors
from uvmalloc.pools import MemPool
from uvmalloc.summary import memory_summary
from uvmalloc.torch_names import add_methods as _add_methods
from uvmalloc.types import Stats

__all__ = [
    "Group",
    "GroupFigures",
    "Growing",
    "MemPool",
    "MissingLibraryError",
    "Pipeline",
    "PlannedProgram",
    "Stats",
    "StreamedCheckpoint",
    "advise",
    "enabled",
    "group",
    "group_of",
    "groups",
    "growing",
    "load_safetensors",
    "mark",
    "memory_summary",
    "offload_hooks",
    "pipeline",
    "plan_storage",
    "prefetch",
    "region",
    "residency",
    "set_budget",
    "stats",
    "stream_safetensors",
]
__version__ = "0.2.0"

# uvmalloc_autoload, torch's entry point, also imports this package if a variable switches uvmalloc
# on. That import adds no methods.
if not getattr(_sys.modules.get("uvmalloc_autoload"), "is_importing", False):
    _add_methods()
