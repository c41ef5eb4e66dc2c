"""Tests that run inside the virtual machine: test_softroce.py boots it with each of them."""
