"""``python -m benchmarks gpu``: what only a machine with a GPU can tell, in blocks that a later call goes on with.

``command.py`` runs the steps of ``steps.py`` one after the other, each in a process of its own with a deadline
(``child.py``), and keeps what they find in a file that grows step by step (``record.py``). ``probe.py`` asks the driver
itself, through the table of ``driver.py``; ``allreduce.py`` compares all-reduces on the GPU with one another and with
the bounds of ``bounds.py``. ``make gpu`` builds DDL first. docs/gpu.md.
"""
