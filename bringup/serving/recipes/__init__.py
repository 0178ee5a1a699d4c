"""Recipes: what a model needs to be served, as data, and the pure function that renders it to command lines."""
