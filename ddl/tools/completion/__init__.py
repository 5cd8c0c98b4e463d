"""What shells and ``man`` know of the commands, made from the parsers: completion scripts and man pages.

``commands.py`` turns the parsers into plain data. ``bash.py``, ``zsh.py``, ``fish.py`` and ``man_page.py`` each make
text of that data. ``share.py`` writes all of it for a wheel. Nothing here imports anything but the standard library and
modules of DDL that do the same: a wheel is built where nothing else is installed.
"""
