"""``ddl tune``: measures by ``ddl.tuning.measure`` which algorithm serves which size best; docs/tune.md."""
