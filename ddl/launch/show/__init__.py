"""What people and programs see of a job that runs: the status line, ``--metrics``, the answers to ``ddl top``."""
