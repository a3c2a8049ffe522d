"""What other routers do, as published and with their own constants: to measure against, and for those who want it."""
