"""Make the environment that the tooling runs in, when it is missing or its lock has changed; otherwise do nothing.

Run by the Makefile with the user's Python, before anything else: a Python that is too old or lacks a part is told here,
and the file therefore keeps to what old versions can read.
"""

import hashlib
import os
import shutil
import subprocess
import sys

OLDEST = (3, 10)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def fail(what, following, status):
    sys.stderr.write("tools: %s\n  next:  %s\n" % (what, following))
    sys.exit(status)


def main():
    version = "%d.%d" % sys.version_info[:2]
    if sys.version_info < OLDEST:
        fail(
            "Python %s is too old, %d.%d or newer is needed (%s)" % (version, OLDEST[0], OLDEST[1], sys.executable),
            "make PYTHON=python3.11 and the same command, with a newer Python",
            2,
        )
    if shutil.which("git") is None:
        fail("git is not installed", "install git and run the command again", 2)

    tools = os.path.join(ROOT, "build", "tools")
    stamp = os.path.join(tools, "stamp")
    lock = os.path.join(ROOT, "requirements", "tools.txt")
    with open(lock, "rb") as opened:
        wanted = version + " " + hashlib.sha256(opened.read()).hexdigest()
    try:
        with open(stamp) as opened:
            if opened.read() == wanted:
                return
    except OSError:
        pass

    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError as error:
        fail(
            "this Python lacks its module %s (%s)" % (error.name, sys.executable),
            "install the package that has it (python3-venv on Debian) and run the command again",
            2,
        )

    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    from patchset.indexes import pip_env

    sys.stderr.write("tools: installing requirements/tools.txt into build/tools, once, under a minute ...\n")
    venv.EnvBuilder(clear=True, with_pip=True).create(tools)
    python = os.path.join(tools, "bin", "python")
    command = [python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        command + ["-r", lock],
        cwd=os.path.join(ROOT, "build"),
        env=pip_env(python),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if done.returncode:
        for line in done.stdout.rstrip().splitlines()[-8:]:
            sys.stderr.write("  | %s\n" % line)
        fail(
            "pip could not install the tools; the network or the package index may be out of reach",
            "check the network (or pip's index settings) and run the command again",
            1,
        )
    with open(stamp, "w") as opened:
        opened.write(wanted)
    sys.stderr.write("tools: done\n")


if __name__ == "__main__":
    main()
