"""The network between the hosts of a job: addresses, interfaces, rails, and who may connect (auth.py, newcomers.py).

For the standard library alone; the store, the launcher and the tools stand on it.
"""
