"""Text for people: times and sizes, names of signals, misspelt names, and tracebacks without DDL's own frames."""

from __future__ import annotations
