"""What it costs to watch a job: see command.py."""
