"""The machine: processor, threads, folders."""
