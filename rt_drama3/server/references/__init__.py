"""Audio of voices and references: fetched, checked, decoded and stored."""
