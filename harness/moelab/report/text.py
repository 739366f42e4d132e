"""Text from result files made safe, file names made from it, and numbers written for people.

A result file is untrusted input: a name in it may be anything. Everything that reaches a page, a figure or a file name
passes through here once, when it is loaded.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata

_SLUG_DROPPED = re.compile(r"[^a-z0-9]+")
_MAX_TEXT = 2000
# Not printable: control, unassigned, private, half of a surrogate pair, and format characters. The last reorder what
# follows them or cannot be seen at all: a command would read differently from what it is, a name like another one.
_UNSEEN = frozenset({"Cc", "Cs", "Cn", "Co", "Cf"})


def clean(value: object, limit: int = _MAX_TEXT) -> str:
    """Any value as one line of printable text of at most `limit` characters; never raises.

    What cannot be seen (control and format characters, lone surrogates) becomes U+FFFD, any white space one space.
    """
    text = value if isinstance(value, str) else "" if value is None else str(value)
    text = " ".join(text[: limit * 4].split())
    text = "".join("\ufffd" if unicodedata.category(ch) in _UNSEEN else ch for ch in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def slug(text: str) -> str:
    """A file name from any text: [a-z0-9-] only, at most 60 characters, no two different texts the same by accident.

    A text that is already such a name stays as it is; any other gets six hex digits of its hash at the end.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    plain = _SLUG_DROPPED.sub("-", plain).strip("-")[:48].strip("-")
    if plain == text:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{plain}-{digest}" if plain else f"x-{digest}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three significant digits, without a unit."""
    return significant(seconds * 1e3)


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent between 1e-4 and 1e6."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -5 < magnitude < 6:
        return f"{value:.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def ratio(value: float) -> str:
    """A speedup: 2.05x; three significant digits from 0.01 up."""
    if not math.isfinite(value):
        return "–"
    return f"{significant(value) if value >= 10 else f'{value:.2f}'}x"


def ratio_interval(low: float, high: float) -> str:
    """An interval of a speedup: 1.98–2.11."""
    return f"{ratio(low)[:-1]}–{ratio(high)[:-1]}" if math.isfinite(low) and math.isfinite(high) else "–"


def percent(fraction: float) -> str:
    """A fraction as a percent with a narrow space: 87 %, and below 1 % two significant digits."""
    if not math.isfinite(fraction):
        return "–"
    return f"{significant(fraction * 100, 2) if 0 < fraction < 0.0095 else f'{fraction * 100:.0f}'}\u202f%"


def whole_percent(fraction: float) -> str:
    """A fraction that somebody chose, not rounded: 95 %, 99.99 %, 2.5 %."""
    return f"{fraction * 100:.6g}\u202f%"


def count(number: int, singular: str, plural: str = "") -> str:
    """1 cell, 2 cells."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def binary_size(size: float) -> str:
    """Bytes in KiB, MiB or GiB, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{significant(size) if size < 1000 else f'{size:.0f}'} {unit}"


def csv_cell(value: object) -> object:
    """A CSV cell that a spreadsheet does not run as a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return value
