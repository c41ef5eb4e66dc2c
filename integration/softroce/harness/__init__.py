"""The Soft-RoCE virtual machine harness behind `integration/softroce/run`."""
