"""Text rules, segmentation, directions and the prompt. Imports no torch."""
