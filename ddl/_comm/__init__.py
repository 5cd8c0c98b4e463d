"""What stands behind a ``Communicator``: plans, connections, and what each verb hands to the native core. Private."""

from __future__ import annotations
