"""What runs, its end and its report: on this machine (local_job.py), on several (cluster_job.py), elastic."""
