"""``ddl blame``: says which rank is to blame, by the dumps of all ranks of a job. ``command.py`` reads the files."""
