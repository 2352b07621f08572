"""Writes the licences and the bill of materials of the crates in the trainer.

usage: licences.py FOLDER FLAG...

In: `cargo tree` with the flags of the build, `cargo metadata`, `Cargo.lock`. Out: in FOLDER
LICENSES-THIRD-PARTY, with each text once, and bill-of-materials.cdx.json (CycloneDX 1.5).
Invariant: neither macros nor crates of builds and tests; no date and no serial number. Source:
https://cyclonedx.org/docs/1.5/json/, https://github.com/package-url/purl-spec.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TARGET = "x86_64-unknown-linux-gnu"
# Starts of the names of files with a licence.
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")
NO_TEXT = """These crates contain no text of the licence named above; LICENSE-APACHE has that of Apache-2.0. Their authors:

"""
LINE = "=" * 80


def cargo(*words):
    output = subprocess.run(["cargo", words[0], "--locked", *words[1:]], check=True, stdout=subprocess.PIPE)
    return output.stdout.decode()


def crates_of_trainer(flags):
    """Returns the metadata of the crates in the trainer, by name and version."""
    tree = cargo("tree", "--package", "trainer", "--target", TARGET, "--edges", "normal,no-proc-macro",
                 "--prefix", "none", "--format", "{p}", *flags)
    inside = {tuple(re.match(r"(\S+) v(\S+)", line).groups()) for line in tree.split("\n") if line}
    packages = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))["packages"]
    crates = {(crate["name"], crate["version"]): crate for crate in packages}
    missing = inside - crates.keys()
    if missing:
        sys.exit(f"crates of the program: expected those of cargo tree, missing in cargo metadata: {missing}")
    lock = re.findall(r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', Path("Cargo.lock").read_text(encoding="utf-8"))
    checksums = {(name, version): checksum for name, version, checksum in lock}
    for key in inside:
        # Old manifests separate alternatives by a slash.
        crates[key]["license"] = re.sub(" ?/ ?", " OR ", crates[key]["license"] or "")
        crates[key]["checksum"] = checksums.get(key)
    return [crates[key] for key in sorted(inside)]


def texts(folder):
    """Returns the licence texts in a crate's folder, without differences in line ends."""
    for path in sorted(folder.iterdir()):
        if path.name.lower().startswith(NAMES) and path.suffix != ".rs" and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            yield "\n".join(line.rstrip() for line in lines).strip()


def notices(crates):
    """Returns the licences of all external crates, each text once under its crates."""
    names_by_text = {}
    for crate in crates:
        name = "{name} {version} ({license})".format(**crate)
        if not crate["license"]:
            sys.exit(f"{name}: no licence in its manifest. Use another crate")
        found = list(texts(Path(crate["manifest_path"]).parent))
        if not found:
            print(f"{crate['name']} contains no text of its licence, and is named with its authors")
            found = [NO_TEXT + "\n".join(crate["authors"])]
        for text in found:
            names_by_text.setdefault(text, []).append(name)
    sections = ["\n".join([LINE, *names, LINE, "", text, ""]) for text, names in names_by_text.items()]
    head = "The program contains the crates named here, under the licences that follow.\n\n"
    return head + "\n".join(sorted(sections))


def component(crate, kind):
    # A plus would be read as a space.
    reference = "pkg:cargo/{}@{}".format(crate["name"], crate["version"].replace("+", "%2B"))
    hashes = [{"alg": "SHA-256", "content": crate["checksum"]}] if crate["checksum"] else []
    references = [{"type": "vcs", "url": crate["repository"]}] if crate["repository"] else []
    return {"type": kind, "bom-ref": reference, "name": crate["name"], "version": crate["version"], "purl": reference,
            "licenses": [{"expression": crate["license"]}], "hashes": hashes, "externalReferences": references}


def bill_of_materials(crates):
    program, = (crate for crate in crates if crate["name"] == "trainer")
    libraries = [component(crate, "library") for crate in crates if crate is not program]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": component(program, "application")}, "components": libraries}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    crates = crates_of_trainer(sys.argv[2:])
    external = [crate for crate in crates if crate["checksum"]]
    if not external:
        sys.exit("licences: expected external crates with a checksum in Cargo.lock, got none")
    (folder / "LICENSES-THIRD-PARTY").write_text(notices(external), encoding="utf-8")
    bill = json.dumps(bill_of_materials(crates), indent=2) + "\n"
    (folder / "bill-of-materials.cdx.json").write_text(bill, encoding="utf-8")
