"""The engine: many streams on one model."""
