"""The systems that RDMA is asked for, each run as it is deployed; docs/systems.md says what comes of it."""
