"""Recordings of profilers: Kineto and Nsight Systems."""
