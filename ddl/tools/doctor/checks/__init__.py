"""What ``ddl doctor`` looks at; ../verdicts.py runs all of it."""
