"""What admission costs and whom it serves: its cores stepped, its queues over a real Redis."""
