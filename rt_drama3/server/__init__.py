"""The server's rooms, behind ``ws_server``: WebSocket and HTTP on one port.

Thin adapters over ``protocol`` and ``engine``.
"""
