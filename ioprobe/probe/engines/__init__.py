"""Ways to read: each engine runs in a clean child process and returns raw completion times.

``child`` is the process's main loop; ``board`` the shared counters through
which the parent watches and stops it. Nothing here imports torch.
"""
