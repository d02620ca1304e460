from swept_recipes import sweep_recipe

__all__ = ["sweep_recipe"]
