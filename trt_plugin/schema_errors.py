"""The text of a pydantic error, for files that a schema checks."""

from __future__ import annotations

from collections.abc import Collection

import pydantic


def first_problem(error: pydantic.ValidationError, whole: str = "", hidden: Collection[str] = ()) -> str:
    """Words the first error: field, expected, got.

    Args:
        whole: name of the document, for an error that has no field.
        hidden: pydantic's names of alternatives, which are no fields.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(str(key) for key in first["loc"] if key not in hidden)
    got = "" if first["type"] == "missing" else f", got {first['input']!r:.60}"
    problem = first["msg"].replace("Input should be", "expected")
    return f"{field or whole}: {problem}{got}"
