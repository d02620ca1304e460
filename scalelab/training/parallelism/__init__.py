"""How a model is spread over ranks: one small file per way."""
