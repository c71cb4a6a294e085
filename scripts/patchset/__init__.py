"""The tooling of the patch set: fetch a pinned upstream release, apply a series to it, prove, build and keep it.

One module is one step of that flow; `cli` is the front door, and the Makefile its only caller.
"""
