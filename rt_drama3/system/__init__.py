"""The system: machine facts, compute threads, folders of the user, and settings."""
