"""An entry point of the group torch.backends: torch calls load() at the end of `import torch`.

If PYTORCH_ENABLE_UNIFIED_MEMORY switches uvmalloc on, load() loads uvmalloc's library. The library
replaces torch's allocators unless a preloaded library has done so. Otherwise load() imports
nothing, so this module is not part of the package. It never raises, or `import torch` would fail.
"""

from __future__ import annotations

import os
import sys

OFF_WORDS = ("", "0", "off", "false", "no")


# True while load() imports the package: the program has not imported it, so no methods are added.
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
    """Makes the program's own `import uvmalloc` the first import, which adds the methods."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "uvmalloc"]:
        del sys.modules[name]
