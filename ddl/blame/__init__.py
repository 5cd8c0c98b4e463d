"""Which rank is to blame: merges the dumps of all ranks of a job (ddl/records) into a verdict. No I/O, no clock.

judge.py has the entry: ``blame``. view.py is the job as the dumps show it. waits.py says who waits for whom, roots.py
where these waits lead to, causes.py what a rank does while others wait for it. mismatch.py compares calls, slow.py
finds the slow rank of a job that runs. finding.py is the result, and its last lines for ``ddlrun``.
"""
