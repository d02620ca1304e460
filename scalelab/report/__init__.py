"""The answer as figures and as one self-contained HTML file."""
