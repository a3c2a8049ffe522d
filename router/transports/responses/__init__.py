"""Responses as things of their own: kept, followed, going on without their client."""
