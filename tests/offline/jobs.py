"""Jobs as processes, and what they leave on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def begin(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "predict", *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], limit: float = 50) -> int:
    out, told = process.communicate(timeout=limit)
    assert process.returncode in (0, 3), out + told
    return process.returncode


def recorded(out: str) -> int:
    path = Path(f"{out}.manifest.jsonl")
    return path.read_text().count('{"part"') if path.exists() else 0


def errors(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(f"{out}.errors.jsonl").read_text().splitlines()]
