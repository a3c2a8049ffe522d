"""Measures of jobs: what a long queue of them costs, and how many one router runs a second."""
