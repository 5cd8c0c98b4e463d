"""Times how soon a rank that sleeps in a wait goes on: ``python -m benchmarks waking``."""
