"""A row of each kind, as an installed distribution adds them to ScaleLab."""
