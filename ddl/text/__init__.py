"""Text for people: times and sizes, suggestions for misspelt names, and tracebacks without DDL's own frames."""

from __future__ import annotations
