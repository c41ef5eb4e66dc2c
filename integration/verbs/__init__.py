"""The verbs channel over Soft-RoCE."""
