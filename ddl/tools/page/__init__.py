"""``ddl page``: shows a job that has ended, from the file of its history."""
