"""What torch calls at the end of `import torch`, as an entry point of the group torch.backends.

Where PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on, its library is loaded then and takes the
places of torch's allocators, unless it was preloaded and has done so. Else nothing happens, and
nothing is imported: that is why this is no part of the package. It never raises: torch would fail
to import.
"""

from __future__ import annotations

import os
import sys

OFF_WORDS = ("", "0", "off", "false", "no")


def load() -> None:
    if os.environ.get("PYTORCH_ENABLE_UNIFIED_MEMORY", "").lower() in OFF_WORDS:
        return
    try:
        from uvmalloc import native, torch_names

        if native.library().uvmalloc_load_in_torch():
            torch_names.take_manage_argument()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"uvmalloc: {reason}: torch keeps its own allocators", file=sys.stderr)
