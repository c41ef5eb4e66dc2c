"""Other people's test suites, plain and preloaded: see README.md."""
