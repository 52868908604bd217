"""Makes the client without `async` from the one with it, so that both have the same methods.

`python3 unasync.py` writes the files, `python3 unasync.py --check` fails if they are stale.
"""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "src" / "weir_client"
FILES = {"async_client.py": "client.py", "async_slots.py": "slots.py", "async_transport.py": "transport.py"}
HEADING = "# Made from {} by unasync.py: edit that file.\n"

# In this order; each is a pattern and its replacement.
RULES = [
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncPages\b", "Pages"),
    (r"\bAsyncTransport\b", "Transport"),
    (r"\bAsync(Limit|Slot)\b", r"\1"),
    (r"\bAsyncWeir\b", "Weir"),
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\basync_(slots|transport)\b", r"\1"),
    (r"\bawait asyncio\.sleep\b", "time.sleep"),
    (r"import asyncio\nimport itertools\nimport random\n", "import itertools\nimport random\nimport time\n"),
    (r"import asyncio\nimport time\n", "import time\n"),
    (r"\ban `async with` block\b", "a `with` block"),
    (r"\bseveral tasks\b", "several threads"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(iter|enter|exit)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
]


def made(source: str) -> str:
    text = (FOLDER / source).read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return HEADING.format(source) + text


def main() -> int:
    stale = [target for source, target in FILES.items() if (FOLDER / target).read_text() != made(source)]
    if "--check" in sys.argv:
        for target in stale:
            print(f"{target} is stale: run python3 unasync.py")
        return int(bool(stale))
    for source, target in FILES.items():
        (FOLDER / target).write_text(made(source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
