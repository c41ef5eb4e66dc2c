"""The benches of `ringroad bench`: TCP, Ringroad and its rivals in turns, on one host or two."""
