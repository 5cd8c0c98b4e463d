"""How a job begins that another program than ``ddlrun`` has started: who this rank is, and a store for the job."""

from __future__ import annotations

from ddl.bootstrap import environ, launched
from ddl.bootstrap.environ import Identity, Settings
from ddl.launch.ask.layout import arrange
from ddl.net.address import parse_address
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient

__all__ = ["Identity", "Settings", "StoreClient", "StoreServer", "arrange", "environ", "launched", "parse_address"]
