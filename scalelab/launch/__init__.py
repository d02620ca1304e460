"""How ranks start on a node and how they end."""
