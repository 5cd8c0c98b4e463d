"""The page about a job in the browser: ``ddlrun --dashboard``, and ``ddl page FILE`` for a job that has ended.

``live.py`` takes what happens from ddlrun's loop, and makes *records* of it: small dictionaries with a kind and a time
(records.py). A record goes to the file of ``--history`` (history.py) and to all viewers of the page (server.py);
``story.py`` tells late viewers what came before. ``files/`` is the page itself. docs/dashboard.md is for users.
"""
