"""The command line: parse, call session, print."""
