"""What was measured: attempts, runs on disk, the observations frame."""
