"""The latency harness: ``rt-drama3 bench``. docs/latency.md has the definitions it measures by.

``metrics``, ``estimates``, ``seams``, ``drift``, ``schedules`` and ``compare`` are arithmetic on
what was recorded: no torch, no clock. Scenarios record; the product never imports this package.
"""
