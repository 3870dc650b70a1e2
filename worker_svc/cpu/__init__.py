"""Kernels in C++ for CPUs, and one call a step over packed weights (docs/design/cpu-kernels.md)."""
