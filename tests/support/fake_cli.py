"""A command for tests of the `cli` adapter: `python fake_cli.py MODE [WORDS]`, with the prompt on stdin or as a word.

Each mode behaves, or misbehaves, in one way. It imports little, so that it starts quickly, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable


def say(**event: object) -> None:
    """Print one event of the jsonl format."""
    print(json.dumps(event), flush=True)


def echo(*_: str) -> None:
    """Print the prompt."""
    sys.stdout.write(sys.stdin.read())


def facts(*words: str) -> None:
    """Print what it was started with."""
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
    told = {
        "argv": words,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "stdin": sys.stdin.read(),
        "group": os.getpgid(0) == os.getpid(),
        "fds": descriptors,
    }
    print(json.dumps(told), end="")


def chat(*words: str) -> None:
    """A command with sessions: remembers in its folder, tells all that it was told; `--resume ID` goes on."""
    prompt = sys.stdin.read()
    session = words[words.index("--resume") + 1] if "--resume" in words else f"s-{os.getpid()}"
    file = f"{session}.json"
    if "--resume" in words and not os.path.exists(file):
        print(f"no session {session}", file=sys.stderr)
        sys.exit(1)
    heard = json.load(open(file)) if os.path.exists(file) else []  # noqa: SIM115
    heard.append(prompt)
    with open(file, "w") as memory:
        json.dump(heard, memory)
    say(type="session", session_id=session)
    if "fail" in prompt:
        say(type="error", message="the task failed")
        sys.exit(1)
    say(type="text", text=f"heard {len(heard)}: ")
    say(type="text", text=" / ".join(heard))
    say(type="usage", input_tokens=10 * len(heard), output_tokens=3)
    say(type="result")


def play(path: str, code: str, *_: str) -> None:
    """Print a transcript and exit with a code."""
    sys.stdin.read()
    with open(path) as transcript:
        sys.stdout.write(transcript.read())
    sys.exit(int(code))


def slow(*words: str) -> None:
    """Say a word every 20 ms, for ever."""
    number = 0
    while True:
        say(type="text", text=f"w{number} ")
        number += 1
        time.sleep(0.02)


def flood(*words: str) -> None:
    """Write without end, to stdout or stderr."""
    out = sys.stderr.buffer if "stderr" in words else sys.stdout.buffer
    line = json.dumps({"type": "weather", "text": "x" * 65000}).encode() + b"\n"
    while True:
        out.write(line)


def stubborn(path: str, *_: str) -> None:
    """Ignore TERM, with a child that ignores it too; their process ids go into a file."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {child}")
    os.rename(path + ".new", path)
    say(type="text", text="here")
    time.sleep(600)


def daemon(path: str, *_: str) -> None:
    """Answer and exit, leaving two behind with stdout in their hands: one in the group, one in a session of its own."""
    pids = []
    for own_session in (False, True):
        child = os.fork()
        if child == 0:
            if own_session:
                os.setsid()
            time.sleep(600)
            os._exit(0)
        pids.append(child)
    with open(path, "w") as file:
        file.write(" ".join(map(str, pids)))
    say(type="text", text="done")
    say(type="result")


def lingers(*_: str) -> None:
    """Say the last word and stay."""
    say(type="text", text="done")
    say(type="result")
    time.sleep(600)


def complain(code: str, *words: str) -> None:
    """Say what a command says that cannot go on: on stderr."""
    print(*words, file=sys.stderr)
    print("password:", os.environ.get("TEST_SECRET", "none"), file=sys.stderr)
    sys.exit(int(code))


def litter(*_: str) -> None:
    """Leave a folder behind that cannot be removed just so."""
    os.makedirs("deep/er")
    open("deep/er/file", "w").close()
    os.chmod("deep/er", 0o500)
    os.symlink("/etc", "deep/link")
    print(os.getcwd(), end="")


MODES: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (echo, facts, chat, play, slow, flood, stubborn, daemon, lingers, complain, litter)
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
