"""The checks of ``ddl doctor``; ../verdicts.py runs them all."""
