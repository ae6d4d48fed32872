"""Text: rules, cutting, directions, and the prompt. No torch here."""
