"""``rt-drama3 serve``: the server from the command line.

Heavy imports wait until the command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rt_drama3.cli import common


@common.with_model_options
def serve(
    options: common.ModelOptions,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 picks a free one (default: 8035).")
    ] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Accepted API key; repeatable.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow listening beyond loopback without a key.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages that may call the server; repeatable, * is any."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS|NETWORK",
            help="Proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; repeatable.",
        ),
    ] = None,
    url_references: Annotated[
        bool,
        typer.Option("--url-references", help="Fetch reference clips from URLs in requests."),
    ] = False,
    listen: Annotated[
        bool,
        typer.Option("--listen", "--obs", help="Enable the listen endpoints (e.g. for OBS)."),
    ] = False,
    captions: Annotated[
        bool | None, typer.Option(help="Send captions to listeners (default: on).")
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(help="Also play all speech on this machine: speaker[:DEVICE] or mic[:NAME]."),
    ] = None,
    sink_mode: Annotated[
        str | None, typer.Option(help="How clients share the sink: queue (default) or mix.")
    ] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Folder of named voices and steering vectors.")
    ] = None,
    max_streams: Annotated[
        int | None, typer.Option(help="Maximum number of concurrent streams (default: 4).")
    ] = None,
    step_mode: Annotated[
        str | None, typer.Option(help="auto (default), eager, compile or cudagraph.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help=r"TOML file with \[server], \[limits] and \[engine].")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Log level: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run the WebSocket and HTTP server until SIGTERM or Ctrl-C."""
    from rt_drama3.engine.config import read_engine_config
    from rt_drama3.errors import ConfigError
    from rt_drama3.server.config import read_server_config
    from rt_drama3.server.logs import LEVELS, log_to_stderr
    from rt_drama3.ws_server import serve as run

    if log_level.lower() not in LEVELS:
        raise ConfigError(f"--log-level is {log_level!r}; use one of {', '.join(LEVELS)}.")
    settings = read_server_config(
        config,
        host=host,
        port=port,
        api_keys=api_key,
        insecure=insecure or None,
        cors_origins=cors_origin,
        trusted_proxies=trusted_proxy,
        url_references=url_references or None,
        listen=listen or None,
        captions=captions,
        sink=sink,
        sink_mode=sink_mode,
        data_folder=None if data_folder is None else str(data_folder),
    )
    engine = read_engine_config(config, max_streams=max_streams, step_mode=step_mode)
    log_to_stderr(log_level)

    name = Path(options.model).name if Path(options.model).exists() else options.model
    run(settings, lambda: options.load(engine=engine), name)
