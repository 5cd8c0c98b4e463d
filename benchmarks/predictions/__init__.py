"""Programs that compare what ``ddl simulate`` and ``ddl tune`` say with what real jobs do."""
