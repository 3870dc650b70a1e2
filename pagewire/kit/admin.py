"""`AdminService`, which every service has on its admin port: the log level of a running process."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from pagewire.kit.errors import InvalidRequestError, NotFoundError
from pagewire.kit.logs import get_logger, set_level
from pagewire.v1 import admin_pb2, admin_pb2_grpc

log = get_logger("pagewire.kit.admin")


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Changes log levels until the process ends."""

    async def SetLogLevel(
        self,
        request: admin_pb2.SetLogLevelRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> admin_pb2.SetLogLevelResponse:
        # A logger lives as long as the process, so a name must not create one.
        if request.logger and request.logger not in logging.root.manager.loggerDict:
            raise NotFoundError("no logger of this name", field="logger")
        try:
            previous = set_level(request.level, request.logger)
        except ValueError as exc:
            raise InvalidRequestError(f"level {exc.args[2]}", field="level") from exc
        log.warning("log_level_changed", target=request.logger, level=request.level)
        return admin_pb2.SetLogLevelResponse(previous_level=previous)
