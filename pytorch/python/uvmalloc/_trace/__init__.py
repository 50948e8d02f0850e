"""Traces of the allocator: reading, converting and drawing them, and planning with them.

Importing a module of this package, except plan.py, imports numpy.
"""

MAGIC = b"UVMTRACE"  # the first bytes of a trace
