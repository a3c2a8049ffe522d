"""Which replicas are there, how they are, and what each has to do."""
