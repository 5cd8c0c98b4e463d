"""On each host: starts the ranks, reads what they write, ends them. host_agent.py is the way in."""
