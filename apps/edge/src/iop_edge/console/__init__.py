"""`console.listen`: a read-only status page and the JSON that it polls."""

from iop_edge.console._server import ConsoleSources, console_app, serve_console

__all__ = ["ConsoleSources", "console_app", "serve_console"]
