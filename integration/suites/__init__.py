"""Other people's test suites, plain and preloaded: see docs/suites.md."""
