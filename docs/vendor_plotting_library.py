"""Put the plotting library of the report page into the package: ``python docs/vendor_plotting_library.py``.

Needs npm and a registry. Versions are those of ``VERSIONS`` below; a test holds the files to the digests in
``vendored.json``, which this writes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "advisor" / "report" / "page" / "assets" / "vendor"
VERSIONS = {"d3": "7.9.0", "@observablehq/plot": "0.6.17"}
FILES = {
    "d3": {"dist/d3.min.js": "d3.min.js", "LICENSE": "d3.LICENSE.txt"},
    "@observablehq/plot": {"dist/plot.umd.min.js": "plot.umd.min.js", "LICENSE": "plot.LICENSE.txt"},
}
"""Package -> file in it -> its name here. Scripts are loaded in this order: Plot uses D3."""


def main() -> None:
    """Fetch the packages, copy the files, and write down what they are."""
    VENDOR.mkdir(exist_ok=True)
    found = []
    for package, version in VERSIONS.items():
        with tempfile.TemporaryDirectory() as scratch:
            command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"{package}@{version}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(scratch).iterdir()
            with tarfile.open(archive) as packed:
                found += [_copied(packed, package, version, inside, name) for inside, name in FILES[package].items()]
    (VENDOR / "vendored.json").write_text(json.dumps(found, indent=2) + "\n")


def _copied(packed: tarfile.TarFile, package: str, version: str, inside: str, name: str) -> dict[str, str]:
    stream = packed.extractfile(f"package/{inside}")
    assert stream is not None, f"{package} has {inside}"
    content = stream.read()
    (VENDOR / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return {"file": name, "package": package, "version": version, "licence": "ISC", "from": inside, "sha256": digest}


if __name__ == "__main__":
    main()
