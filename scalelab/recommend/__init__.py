"""Recommendations: outlook, knee, choice and the next measurement."""
