"""Scenes: references, earlier takes, steering, and choosing among takes."""
