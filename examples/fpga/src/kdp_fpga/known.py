"""`Known`: what is known of an attribute, which is not always what it says now."""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.frozen
class Known:
    """What is known of an attribute.

    Attributes:
        value: What it says, or said last; None: it never said anything of use.
        problem: Why it says nothing of use now; None: it does.
    """

    value: str | None
    problem: str | None = None
