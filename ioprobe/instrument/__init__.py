"""Timing inside a process that runs a DataLoader, without any change to the user's code.

Shared by ``probe`` (our own runs) and ``live`` (the user's own script).
"""
