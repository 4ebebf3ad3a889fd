"""`for_each`: a parametrised test that counts as one.

`pytest.mark.parametrize` makes every case a test, which costs collection time in each worker, and a set-up, a tear-down
and three reports per case: more than a check of a line or two takes. `for_each` has the same form and loops inside one
test. A failure names its case:

    @for_each("api", APIS)
    def test_a_truncated_message_is_malformed(api: Api) -> None: ...

Cases share the fixtures of the one test, so `for_each` suits checks that leave nothing behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

#: The type of a test function.
Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Call the test for every case. `names` are its parameters: one name, or several for cases that are tuples."""
    fields = (names,) if isinstance(names, str) else names
    rows = [dict(zip(fields, (case,) if isinstance(names, str) else case, strict=True)) for case in cases]
    if not rows:
        raise ValueError(f"no cases for {names}: the test could not fail")

    def looped(test: Test) -> Test:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for row in rows:
                try:
                    test(*args, **fixtures, **row)
                except BaseException as error:
                    error.add_note("case: " + ", ".join(f"{name}={value!r}" for name, value in row.items())[:500])
                    raise

        signature = inspect.signature(test)
        kept = [value for name, value in signature.parameters.items() if name not in fields]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return looped
