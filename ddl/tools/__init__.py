"""The ``ddl`` command: tools around the library. They may use everything of it; nothing of it uses them."""
