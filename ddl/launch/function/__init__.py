"""``ddl.run``: calls a function on many ranks, from a notebook or a program."""
