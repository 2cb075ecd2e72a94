"""Kernels measured on this device: correct first, then side by side with their peers."""
