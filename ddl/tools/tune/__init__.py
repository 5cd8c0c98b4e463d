"""``ddl tune``: measures which algorithm serves which size best on some hosts; ``ddl/tune`` does it. docs/tune.md."""
