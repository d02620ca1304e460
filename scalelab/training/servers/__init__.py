"""Parameter servers: rules of asynchronous training, real servers, a virtual twin."""
