"""Choosing γ and N: measured times, acceptance by position, and a planner that spends what it has earned."""
