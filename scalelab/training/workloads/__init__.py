"""Training jobs by name: what is built in, and the class a user writes."""
