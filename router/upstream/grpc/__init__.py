"""Replicas behind gRPC: HTTP/2, calls, and the two contracts that engines speak."""
