"""Stacks from outside a process: py-spy's recordings, and py-spy on a live job."""
