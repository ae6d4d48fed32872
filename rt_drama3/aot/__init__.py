"""Ahead-of-time compiled packages of the step and the codec, for CPUs."""
