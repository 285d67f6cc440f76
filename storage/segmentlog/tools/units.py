"""Numbers with their units, for people."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_DURATIONS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


def byte_text(n_bytes: float) -> str:
    """``83.1 MB``: three digits, and a unit of 1000 bytes each."""
    for unit in _UNITS:
        if n_bytes < 999.5 or unit == _UNITS[-1]:
            break
        n_bytes /= 1000
    digits = 0 if unit == "B" and n_bytes == int(n_bytes) else max(0, 3 - len(str(int(n_bytes))))
    return f"{n_bytes:,.{digits}f} {unit}"


def percent(part: float) -> str:
    """``12 %``; parts that are near 0 or 1 never look as if they were."""
    if 0 < part < 0.001:
        return "<0.1 %"
    if 0.999 < part < 1:
        return ">99.9 %"
    return f"{part * 100:.1f} %" if 0 < part < 0.1 or 0.9 < part < 1 else f"{part * 100:.0f} %"


def count_text(count: int, error: float) -> str:
    """A count; if it has a relative error, after a ``~``, with the digits that it has."""
    if not error:
        return f"{count:,}"
    digits = max(len(str(count)) - 3, 0)
    return f"~{round(count, -digits):,}"


def duration_text(milliseconds: int) -> str:
    """``7 d`` or ``1.5 h``."""
    for size, unit in _DURATIONS:
        if abs(milliseconds) >= size:
            found = milliseconds / size
            return f"{found:,.0f} {unit}" if found == int(found) else f"{found:,.1f} {unit}"
    return "0 ms"
