"""`tandem bench`: what speculation brings on a machine, every way of it side by side in one run (docs/bench.md)."""
