"""Listening to what the server speaks: feeds and the local sink."""
