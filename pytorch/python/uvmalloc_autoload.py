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


# The package is being imported from here, which is not a program that asks for its names.
is_importing = False


def load() -> None:
    global is_importing
    if os.environ.get("PYTORCH_ENABLE_UNIFIED_MEMORY", "").lower() in OFF_WORDS:
        return
    try:
        is_importing = "uvmalloc" not in sys.modules
        from uvmalloc import native, torch_names

        if native.library().uvmalloc_load_in_torch():
            torch_names.follow_torch()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"uvmalloc: {reason}: torch keeps its own allocators", file=sys.stderr)
    finally:
        if is_importing:
            _forget_package()
        is_importing = False


def _forget_package() -> None:
    """The program's own `import uvmalloc` is then the first one, and adds the methods."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "uvmalloc"]:
        del sys.modules[name]
