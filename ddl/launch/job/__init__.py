"""Runs jobs, ends them and reports on them: on this machine (local_job.py), on several (cluster_job.py), elastic."""
