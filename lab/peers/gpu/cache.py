"""The compiled kernels of our program, in one file between starts.

In: a folder, an archive. Out: the same. Invariant: the archive is whole at any time; it is written while no program of ours runs.
"""

import pathlib
import tarfile


def load(archive, folder):
    """Fills the folder from an archive, if there is one; the number of files."""
    folder.mkdir(exist_ok=True)
    if not pathlib.Path(archive).exists():
        return 0
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.isfile()]
        for member in members:
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise ValueError(f"{archive}: expected names below the folder, got {member.name}")
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.extractfile(member).read())
    return len(members)


def save(folder, archive):
    """Packs the folder, if it has files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    if not files:
        return
    partial = pathlib.Path(archive).with_suffix(".partial")
    with tarfile.open(partial, "w") as packed:
        for path in files:
            packed.add(path, str(path.relative_to(folder)))
    partial.rename(archive)
