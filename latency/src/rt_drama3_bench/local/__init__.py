"""Scenarios that run rt_drama3 in this process: they need it, and so torch, to be installed."""
