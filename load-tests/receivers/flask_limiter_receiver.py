"""A receiver with Flask-Limiter: a fixed window of the clock that announces its quota.

The argument is JSON: {"port": 8080, "limits": [{"path": "/0", "limit": 10, "window_s": 1}]}
"""

import json
import sys

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from waitress import serve

config = json.loads(sys.argv[1])
app = Flask(__name__)
limiter = Limiter(
    get_remote_address, app=app, storage_uri="memory://", strategy="fixed-window", headers_enabled=True
)
for number, one in enumerate(config["limits"]):
    def answer():
        return "ok"

    # Each path has a counter of its own, because a limit counts for each endpoint.
    answer.__name__ = f"answer_{number}"
    limited = limiter.limit(f"{one['limit']} per {one['window_s']} second")(answer)
    app.add_url_rule(one["path"], endpoint=answer.__name__, view_func=limited, methods=["POST"])

serve(app, host="127.0.0.1", port=config["port"], threads=8, _quiet=True)
