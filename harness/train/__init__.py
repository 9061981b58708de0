"""Training a drafter: trajectories from the frozen target, random anchors, one loop, and a walk that checks
it.
"""
