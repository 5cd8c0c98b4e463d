"""How often DDL wrongly calls a rank late, and how soon it finds one that is: ``python -m benchmarks stragglers``."""
