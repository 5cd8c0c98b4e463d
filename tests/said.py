"""Keeps what is logged, for tests."""

from __future__ import annotations

import logging
from typing import List, Tuple


class Said(logging.Handler):
    """What a logger says from now on, until ``close``."""

    def __init__(self, name: str = "ddl", level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.said: List[Tuple[str, str]] = []  #: level and text
        self._logger = logging.getLogger(name)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))

    @property
    def texts(self) -> List[str]:
        return [text for _, text in self.said]

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()
