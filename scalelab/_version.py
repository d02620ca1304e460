"""The version, in a room of its own so that no other must import the package."""

__version__ = "0.1.0"
