"""How often DDL calls a rank late that is not, and how soon it finds that is: ``python -m benchmarks stragglers``."""
