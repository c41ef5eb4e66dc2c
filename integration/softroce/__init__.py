"""Soft-RoCE in a virtual machine."""
