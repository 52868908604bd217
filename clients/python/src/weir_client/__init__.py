"""Client of Weir, which delivers webhooks within exact rate limits."""

from .client import Weir
from .errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    FieldError,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
    WeirError,
)

__all__ = [
    "ApiError",
    "Conflict",
    "ConnectionFailed",
    "FieldError",
    "Forbidden",
    "InvalidRequest",
    "NotFound",
    "PreconditionFailed",
    "Unauthorized",
    "Unavailable",
    "Weir",
    "WeirError",
]
