"""What people read: times and sizes, the name that was meant, and tracebacks without frames of ours."""

from __future__ import annotations
