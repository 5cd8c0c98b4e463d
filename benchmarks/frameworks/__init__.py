"""Programs that time what an adapter adds, or answer one question about a framework."""
