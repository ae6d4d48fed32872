"""Every error of the client becomes one of LiveKit's that says whether to try again."""

from __future__ import annotations

import pytest

from rt_drama3.protocol.refusals import KINDS
from rt_drama3_client import (
    BadServerMessage,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ServerSilent,
    UsageError,
)
from rt_drama3_client.errors import server_error
from tests.clients.livekit.tools import rtdrama3  # skips where it is not there

from livekit.agents import (  # isort: skip - tools has looked whether it is there
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
)
from livekit.plugins.rtdrama3.errors import api_error  # isort: skip


@pytest.mark.parametrize("code", KINDS)
def test_server_errors(code: str) -> None:
    kind = KINDS[code]
    error = server_error(
        code, "What.", remedy="Do it.", retriable=kind.retriable, request_id="utterance-1"
    )
    found = api_error(error)
    assert isinstance(found, APIStatusError)
    assert found.retryable == kind.retriable
    # The class of the status is that of the server's own: whose fault it is.
    assert found.status_code // 100 == kind.http // 100 or code == "stopped"
    assert found.request_id == "utterance-1"
    assert found.body == {"code": code, "remedy": "Do it.", "retriable": kind.retriable}
    assert "What. Do it." in str(found)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (ConnectFailed("Why."), APIConnectionError, True),
        (ConnectionLost("Why."), APIConnectionError, True),
        (ClientClosed("Why."), APIConnectionError, False),
        (ServerSilent("Why."), APITimeoutError, True),
        (BadServerMessage("Why."), APIError, False),
        (UsageError("Why."), APIError, False),
    ],
)
def test_client_errors(error: ClientError, kind: type[APIError], retryable: bool) -> None:
    found = api_error(error)
    assert type(found) is kind
    assert found.retryable == retryable
    assert found.message == str(error)


def test_plugin_is_registered() -> None:
    from livekit.agents import Plugin

    found = [one for one in Plugin.registered_plugins if one.package == rtdrama3.__name__]
    assert [one.version for one in found] == [rtdrama3.__version__]
