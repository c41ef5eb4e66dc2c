"""The programs that test and measure Ringroad as a whole, and what they share."""
