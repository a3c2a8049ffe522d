"""Several processes on one host: what they share, and how they tell each other."""
