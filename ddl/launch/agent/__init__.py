"""On each host: starts the ranks, reads what they write, ends them. remote.py is the way in, host_ranks.py the loop."""
