"""Tests that run inside the virtual machine: boots.py boots it with each of them."""
