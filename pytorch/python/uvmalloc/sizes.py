"""Sizes in bytes, in a form for people."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE | re.ASCII)
_LARGEST = (1 << 63) - 1

EXAMPLES = "512MiB, 8G, 1.5GiB or plain bytes"


def parse_size(text: str) -> int:
    """Returns the bytes in `text`, in powers of 1024. Raises ValueError if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a size")
    number, unit = match[1], (match[2] or "").upper()
    if "." in number and not unit:
        raise ValueError(f"'{text}' is a fraction of a byte")
    whole, _, fraction = number.partition(".")
    scale = _UNITS[unit]
    size_bytes = int(whole) * scale + (
        int(fraction) * scale // 10 ** len(fraction) if fraction else 0
    )
    if size_bytes > _LARGEST:
        raise ValueError(f"'{text}' is more than 2^63 - 1 bytes")
    return size_bytes


def format_size(size_bytes: float) -> str:
    """Returns at most four digits and a unit: 1.5 MiB, 640 B."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1000 and len(units) > 1:
        size /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(size) >= 100 else 1 if abs(size) >= 10 else 2
    text = f"{size:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {units[0]}"
