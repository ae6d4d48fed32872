"""The latency harness: ``rt-drama3-bench``. docs/latency.md defines every figure.

``metrics``, ``estimates``, ``seams``, ``drift``, ``schedules`` and ``compare`` are arithmetic on
recordings, without a clock. ``local`` holds the scenarios that run rt_drama3 in this process;
everything else needs neither it nor torch.
"""
