"""Commands around listening: ``stop`` silences a server's outputs, ``obs`` sets up OBS Studio.

Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.obs import Change

TIMEOUT = 5.0  # seconds
LARGEST_RESPONSE = 65_536  # bytes

obs_app = typer.Typer(help="Add the speech to OBS Studio.", no_args_is_help=True)

ObsUrl: TypeAlias = Annotated[str, typer.Option("--url", help="Address of OBS's WebSocket server.")]
Password: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="RT_DRAMA3_OBS_PASSWORD",
        help="Password of OBS's WebSocket server; prefer the environment variable, since arguments "
        "are visible to other users.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command()(stop)
    app.add_typer(obs_app, name="obs")


def stop(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8035",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Also cancel the clients' running speech.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="RT_DRAMA3_API_KEY", help="API key, if required."),
    ] = None,
) -> None:
    """Silence a server's sink and listeners immediately, e.g. from a hotkey."""
    status, answer = _post(url, "/v1/stop", {"cancel": cancel}, api_key)
    if status == 404:
        raise RequestError(f"{url} has listening disabled; start it with serve --listen or --sink.")
    if status != 200:
        raise RequestError(f"{url} answered {status}: {answer.get('message', 'no reason')}")
    typer.echo("quiet" + (f", {answer.get('cancelled', 0)} cancelled" if cancel else ""))


@obs_app.command("setup")
def obs_setup(
    scene: Annotated[
        str | None, typer.Option(help="Scene to add to (default: the current one).")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="page (default): browser source with captions; mic: virtual microphone; "
            "repeatable.",
        ),
    ] = None,
    page: Annotated[
        str, typer.Option(help="Address of the server's page for OBS.")
    ] = "http://127.0.0.1:8035/obs",
    api_key: Annotated[
        str | None,
        typer.Option(envvar="RT_DRAMA3_API_KEY", help="API key, if required; stored by OBS."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Part of the microphone's name (default: rt-drama3).")
    ] = None,
    url: ObsUrl = "ws://127.0.0.1:4455",
    password: Password = None,
) -> None:
    """Add the server's speech to an OBS scene, or update what an earlier setup added."""
    from rt_drama3.obs import ObsClient, set_up
    from rt_drama3.obs.sources import INPUTS

    for wrong in set(inputs or ()).difference(INPUTS):
        raise RequestError(f"--input is {wrong!r}; use one of {', '.join(INPUTS)}.")
    if urlsplit(page).scheme not in ("http", "https"):
        raise RequestError(f"--page is {page!r}; use an http or https address.")
    with ObsClient(url, password) as obs:
        wanted = inputs or ("page",)
        _report(set_up(obs, wanted, scene=scene, page=page, key=api_key, device=device))


@obs_app.command("remove")
def obs_remove(url: ObsUrl = "ws://127.0.0.1:4455", password: Password = None) -> None:
    """Remove what setup added to OBS."""
    from rt_drama3.obs import ObsClient, remove

    with ObsClient(url, password) as obs:
        changes = remove(obs)
    _report(changes)
    if not changes:
        typer.echo("nothing to remove")


def _report(changes: Sequence[Change]) -> None:
    for change in changes:
        where = f" in scene {change.scene!r}" if change.scene else ""
        typer.echo(f"{change.what} {change.source!r}{where}")
        if change.note:
            typer.echo(change.note, err=True)


def _post(
    url: str, path: str, body: dict[str, object], key: str | None
) -> tuple[int, dict[str, object]]:
    """Posts JSON; returns the status and body of the response.

    Raises:
        RequestError: the address is invalid, or there is no such server.
    """
    try:
        parts = urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme
    except ValueError:
        host, port, scheme = None, None, ""
    if scheme not in ("http", "https") or not host:
        raise RequestError(f"--url is {url!r}; write http://HOST:PORT.")
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection = kind(host, port, timeout=TIMEOUT)
    try:
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), headers)
        response = connection.getresponse()
        found = json.loads(response.read(LARGEST_RESPONSE) or b"{}")
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"no response from {url}: {error}; is it running?") from error
    except ValueError as error:
        raise RequestError(f"{url} is not an rt-drama3 server (no JSON).") from error
    finally:
        connection.close()
    return response.status, found if isinstance(found, dict) else {}
