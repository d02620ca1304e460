"""Parameter servers: rules of asynchronous training, and real servers."""
