"""Lets the ranks of a host share Theano's folder of compiled code.

Beside each compiled module lies a file with its keys. Theano 1.0.5 empties that file before it writes it anew, while
other processes may read it. One that finds it empty takes the module for broken, and deletes it under the process that
uses it, which then fails. Here the new file is written under another name, and then takes the place of the old one.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from theano.gof.cmodule import KeyData


def _save(self: Any) -> None:
    """``KeyData.save_pkl``: write the keys of this module; a PicklingError if they cannot be, and then no file."""
    beside = f"{self.key_pkl}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)
    except pickle.PicklingError:
        os.remove(beside)
        if os.path.exists(self.key_pkl):
            os.remove(self.key_pkl)
        raise
    os.replace(beside, self.key_pkl)


KeyData.save_pkl = _save
