"""``ddl timeline``: what a file of ``ddlrun --timeline`` says of a job.

``reading.py`` reads the file, also one that was cut off, ``summary.py`` counts, ``report.py`` says it for people.
"""
