"""gRPC, loaded with its fork handlers off: they kill the children that adapters start (G22). Import it from here."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc as grpc
