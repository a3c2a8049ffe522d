"""WebSockets on the data port."""
