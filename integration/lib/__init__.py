"""Small modules that the integration programs share: servers, load, counters and checks."""
