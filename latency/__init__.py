"""The latency harness: measurements of this project, and nothing that it needs to run."""
