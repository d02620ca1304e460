"""What the measurements say: pure functions of arrays and frames, in and out."""
