"""Starting, supervising and ending the processes of attempts on a node."""
