"""Requests in other APIs' forms, translated both ways."""
