"""DDL as a backend of ``torch.distributed`` (c10d is its C++ name). process_group.py is the way in."""
