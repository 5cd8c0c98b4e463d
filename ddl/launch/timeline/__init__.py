"""``ddlrun --timeline FILE``: what all ranks of a job do, on one time axis; docs/timeline.md has the format.

It needs only the usual records of the ranks. ``job_timeline.py`` takes what launchers read from these records,
``matching.py`` finds the calls that belong together, ``tracks.py`` gives each a place in which slices nest, and
``trace_file.py`` writes. ``cluster_timeline.py`` does it for the hosts of a cluster, whose clocks differ
(ddl/launch/agent/clocks.py).
"""
