"""Start the viewer of trajectories and runs: agentgym view [--runs FOLDER] [--port PORT]."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from environments.address import ListenError, listen, port

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def parse(arguments: list[str] | None, prog: str) -> argparse.Namespace:
    """Parse the command line, before any slow import."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Show trajectories, runs and studies in the browser.",
        epilog=f"examples:\n  {prog}\n  {prog} --runs /data/runs --port 5050",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs", type=Path, help="folder of the runs (default: AGENTGYM_RUNS, else runs)"
    )
    parser.add_argument(
        "--port", type=port, default=5050, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, reachable only from this machine)",
    )
    parser.add_argument(
        "--allowed-hosts",
        default="",
        help="additional host names that browsers may use, comma-separated (required if --host is not local)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, prog: str = "python -m dashboards") -> None:
    """Serve the viewer until it is stopped.

    Args:
        arguments: Words of the command line. By default those of this process.
        prog: What users type to start it, for help and errors.
    """
    chosen = parse(arguments, prog)
    from configs.infrastructure import SettingsError, infra_settings

    try:
        settings = infra_settings()
    except SettingsError as problem:
        raise SystemExit(str(problem)) from None
    runs = (chosen.runs or settings.runs).absolute()
    if not runs.is_dir():
        raise SystemExit(f"{runs} is not a folder. Set --runs to the folder of your runs.")
    import uvicorn

    from dashboards.links import Links
    from dashboards.web import application
    from tasks.provision.errors import ProvisionError
    from tasks.provision.private_files import private_runs, state_folder, stored_secret
    from tasks.provision.services import addresses, login, login_file, new_login

    hosts = [*LOOPBACK, *filter(None, chosen.allowed_hosts.split(","))]
    if chosen.host not in LOOPBACK and not chosen.allowed_hosts:
        raise SystemExit(
            f"--host {chosen.host} is reachable from other machines. Set --allowed-hosts to the "
            "host names that browsers use."
        )
    try:
        listener = listen(chosen.host, chosen.port)
    except ListenError as taken:
        raise SystemExit(str(taken)) from None
    is_own = runs.stat().st_uid == os.getuid() and os.access(runs, os.W_OK)
    # If this user cannot write to the runs folder, e.g. a colleague's, the login is kept in this
    # user's state folder.
    file = login_file(runs) if is_own else state_folder() / "login"
    try:
        opens = login(private_runs(runs)) if is_own else stored_secret(file, new_login)
    except ProvisionError as problem:
        raise SystemExit(str(problem)) from None
    links = Links(settings.mlflow_tracking_uri, lambda: addresses(runs), settings.mlflow_page_url)
    app = application(runs, links, hosts, opens)
    sys.stdout.write(f"Viewer: http://{chosen.host}:{listener.getsockname()[1]} (runs in {runs})\n")
    # Print the login only to a terminal, because others may read logs.
    sys.stdout.write(
        f"Login: {opens} (stored in {file})\n" if sys.stdout.isatty() else f"Login: see {file}\n"
    )
    sys.stdout.flush()
    # Ignore proxy headers, so that clients cannot spoof their address.
    config = uvicorn.Config(app, log_level="warning", proxy_headers=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
