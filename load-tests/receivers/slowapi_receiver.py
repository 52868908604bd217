"""A receiver with slowapi: a moving window that counts every accepted request, without headers.

The argument is JSON: {"port": 8080, "limits": [{"path": "/0", "limit": 10, "window_s": 1}]}
"""

import json
import sys

import uvicorn
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

config = json.loads(sys.argv[1])
limiter = Limiter(key_func=get_remote_address, strategy="moving-window")


def route(number, one):
    async def answer(request: Request):
        return PlainTextResponse("ok")

    # Each path has a counter of its own, because a limit counts for each function.
    answer.__name__ = f"answer_{number}"
    limited = limiter.limit(f"{one['limit']}/{one['window_s']} second")(answer)
    return Route(one["path"], limited, methods=["POST"])


app = Starlette(routes=[route(number, one) for number, one in enumerate(config["limits"])])
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
uvicorn.run(app, host="127.0.0.1", port=config["port"], log_level="warning", access_log=False)
