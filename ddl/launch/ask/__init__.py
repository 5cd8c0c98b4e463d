"""What is asked of ``ddlrun``: options, config files, hosts, Horovod's names; checked, and without side effects."""
