"""Callbacks for training frameworks; each module imports its framework only where that is installed."""
