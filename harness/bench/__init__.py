"""Benchmarks of parts: what one operation, one round or one training step costs here.  They train and decode nothing
whose numbers stand in a table of acceptance."""
