"""What to do about it: outlook, knee, choice and the next measurement."""
