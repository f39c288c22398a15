#!/usr/bin/env python3
"""Adds up JUnit reports and prints the closing line of a test run.

    summarize_tests.py REPORT.xml...

Names each failed case, then prints 'N passed, N failed[, N skipped]'. Exits 1
on a failure, on a report that can't be read, and where nothing ran.
"""

import sys
import xml.etree.ElementTree as ElementTree


def main() -> int:
    passed = skipped = 0
    failed: list[str] = []
    for path in sys.argv[1:]:
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            failed.append(f"{path}: no readable report ({error})")
            continue
        for case in root.iter("testcase"):
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(name)
            elif (
                case.find("skipped") is not None
                or case.get("status") == "notrun"
                or case.get("result") == "suppressed"
            ):
                skipped += 1
            else:
                passed += 1
    for name in failed:
        print(f"FAILED {name}")
    tail = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {len(failed)} failed{tail}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
