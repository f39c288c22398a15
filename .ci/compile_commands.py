#!/usr/bin/env python3
"""Turns `bazel aquery --output=jsonproto 'mnemonic(CppCompile, //...)'` (stdin)
into compile_commands.json (stdout) for editors.

    compile_commands.py EXECUTION_ROOT < aquery.json > compile_commands.json
"""

import json
import sys


def main() -> None:
    root = sys.argv[1]
    commands, seen = [], set()
    for action in json.load(sys.stdin).get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if source in seen or source.startswith("external/"):
            continue
        seen.add(source)
        commands.append({"directory": root, "file": source, "arguments": arguments})
    json.dump(commands, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
