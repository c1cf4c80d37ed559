"""Write the `top_level.txt` of each installed package that has none: its importable names.

transformers and trl ask for the names of all packages when they are imported. Without these files
Python derives them from the lists of all installed files, which takes two seconds for each process.
"""

from __future__ import annotations

from importlib.metadata import distributions, packages_distributions


def main() -> None:
    """Write the files, and add them to the lists of files that `pip uninstall` removes."""
    names: dict[str, list[str]] = {}
    for name, packages in packages_distributions().items():
        for package in packages:
            names.setdefault(package, []).append(name)
    for package in distributions():
        found = sorted(names.get(package.metadata["Name"], []))
        record = next((file for file in package.files or [] if file.name == "RECORD"), None)
        if not found or record is None or (package.read_text("top_level.txt") or "").split():
            continue
        path = record.with_name("top_level.txt")
        package.locate_file(path).write_text("\n".join(found) + "\n")
        with open(package.locate_file(record), "a", encoding="utf-8") as listed:
            listed.write(f"{path},,\n")


if __name__ == "__main__":
    main()
