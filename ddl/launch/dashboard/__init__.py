"""The page about a job in the browser: ``ddlrun --dashboard``, and ``ddl page FILE`` for a job that has ended.

``live.py`` takes what happens from ddlrun's loop, and makes *records* of it: small dictionaries with a kind and a time
(records.py). A record goes to the file of ``--history`` (history.py) and to all who look at the page (server.py), who
get what came before from ``story.py``. ``files/`` is the page itself. docs/dashboard.md is for users.
"""
