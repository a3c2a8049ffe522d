"""Fleets of simulated replicas behind the router's own decision, on a virtual clock."""
