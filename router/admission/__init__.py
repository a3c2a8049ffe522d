"""WHETHER AND WHEN? The gate before any work, and the ordered queue for a place."""
