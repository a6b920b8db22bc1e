"""Strings that a reader of YAML breaks or takes for something else; for kdp's own tests and for kubectl itself."""

from __future__ import annotations

from typing import Final

__all__ = ["TEXTS"]

TEXTS: Final = (
    *("y", "Y", "yes", "Yes", "n", "N", "no", "NO", "on", "On", "off", "OFF", "true", "True", "false", "null", "Null"),
    *("~", "", " ", "=", "<<", "-", "--", "---", "...", "?", "!", "&a", "*a", "%", "@", "`", "#", "a #b", "a: b", "a:"),
    *("1", "-1", "+1", "0", "017", "0o17", "0O17", "-0o17", "0x1F", "0b1", "-0b1", "1_000", "_1", "0_1"),
    *(
        "1.5",
        ".5",
        "1.",
        "1e3",
        "1E3",
        "1e+3",
        "-1e3",
        "1_0.5",
        ".inf",
        "-.Inf",
        "+.INF",
        ".nan",
        "inf",
        "nan",
        "Infinity",
    ),
    *("1:30", "190:20:30", "190:20:30.15", "-1:30"),
    *("2001-01-01", "2001-1-1", "2001-01-01 01:02:03", "2001-01-01T01:02:03Z", "10m", "48Mi", "10%"),
    *(
        "a\nb",
        "a\n",
        "\n",
        "\n a",
        " a\nb",
        "a \nb",
        "a\n\n",
        "\tb",
        "a\r\nb",
        "a\x07b",
        "a\x85b",
        "a\u2028b",
        "\ufeffa",
        "ä",
        "🤖",
    ),
)
