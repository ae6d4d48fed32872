"""The hardened uvicorn protocols; the only room that touches uvicorn's private API.

tests/server/test_uvicorn_contract.py checks everything that is used of it.
"""
