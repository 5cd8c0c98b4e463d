"""Buckets of gradients, for adapters: which gradient goes with which others in one all-reduce (ddl/plan/buckets.py)."""

from __future__ import annotations

from ddl.plan.buckets import (
    ALIGNMENT,
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    BucketSlot,
    Gradient,
    assign,
    group_numbers,
)

__all__ = ["ALIGNMENT", "BUCKET_BYTES", "FIRST_BUCKET_BYTES", "Bucket", "BucketSlot", "Gradient", "assign"]
__all__ += ["group_numbers"]
