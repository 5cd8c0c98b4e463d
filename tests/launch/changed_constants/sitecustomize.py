"""Changes constants of ddlrun and its agents as CHANGED_CONSTANTS says (launcher.py): a JSON object by their names.

Python runs this when it starts, before another module of ddlrun can have taken the old value over.
"""

import importlib
import json
import os

with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
    line = file.read()
if "ddl.launch" in line and "CHANGED_CONSTANTS" in os.environ:  # not in the ranks
    for name, value in json.loads(os.environ["CHANGED_CONSTANTS"]).items():
        module, _, constant = name.rpartition(".")
        loaded = importlib.import_module(module)
        assert isinstance(getattr(loaded, constant), float), name
        setattr(loaded, constant, value)
