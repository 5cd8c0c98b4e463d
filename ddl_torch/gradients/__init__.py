"""What is behind ``DistributedOptimizer``: from autograd's hooks to averages. reducer.py is the way in."""
