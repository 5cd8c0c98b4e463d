"""What runs on every rank of a contestant's job: checks values, then times.

It knows numpy and the one library that it drives, and of DDL nothing else: Open MPI and MPICH run it in environments
of their own, where DDL is not installed.
"""
