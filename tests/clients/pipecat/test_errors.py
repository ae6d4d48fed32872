"""Every error of the client has a category of Pipecat's."""

from __future__ import annotations

import pytest

from rt_drama3.protocol.refusals import KINDS
from rt_drama3_client import (
    BadServerMessage,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ServerSilent,
    UsageError,
)
from rt_drama3_client.errors import server_error
from tests.clients.pipecat.tools import ours

from pipecat.utils.errors import ErrorCategory  # isort: skip - tools has looked
from pipecat_rtdrama3.errors import category  # isort: skip

assert ours


@pytest.mark.parametrize("code", KINDS)
def test_transient_errors_never_disable_the_service(code: str) -> None:
    found = category(server_error(code, "What.", retriable=KINDS[code].retriable))
    assert found is not ErrorCategory.UNKNOWN
    assert not (KINDS[code].retriable and found.is_permanent)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (server_error("unauthorized", "Why."), ErrorCategory.AUTHENTICATION),
        (server_error("forbidden", "Why."), ErrorCategory.AUTHORIZATION),
        (server_error("unknown_voice", "Why."), ErrorCategory.INVALID_REQUEST),
        (server_error("bad_text", "Why."), ErrorCategory.APPLICATION),
        (server_error("overloaded", "Why."), ErrorCategory.RATE_LIMIT),
        (server_error("not_ready", "Why."), ErrorCategory.SERVER),
        (server_error("internal", "Why."), ErrorCategory.SERVER),
        (server_error("of_tomorrow", "Why."), ErrorCategory.SERVER),
        (ConnectFailed("Why."), ErrorCategory.CONNECTIVITY),
        (ConnectionLost("Why."), ErrorCategory.CONNECTIVITY),
        (ServerSilent("Why."), ErrorCategory.CONNECTIVITY),
        (UsageError("Why."), ErrorCategory.INVALID_REQUEST),
        (BadServerMessage("Why."), ErrorCategory.UNKNOWN),
    ],
)
def test_categories(error: ClientError, expected: ErrorCategory) -> None:
    assert category(error) is expected
