"""Prints the parts of a release as CycloneDX JSON: what is compiled into the libraries, and what
pip installs beside them.

    PYTHONPATH=tools python scripts/release_parts.py ROOT
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

import tomllib
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from header_libraries import LIBRARIES
from packageurl import PackageURL
from packaging.requirements import Requirement


def version_of(root: Path) -> str:
    text = (root / "include/uvmalloc/uvmalloc.h").read_text()
    return ".".join(
        re.search(rf"UVMALLOC_VERSION_{part} (\d+)", text)[1]
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def compiled_parts(root: Path) -> list[Component]:
    jemalloc = (root / "cmake/jemalloc/CMakeLists.txt").read_text()
    version = re.search(r"set\(version (\S+)\)", jemalloc)[1]
    digest = re.search(r"SHA256=(\w+)", jemalloc)[1]
    parts = [
        Component(
            name="jemalloc",
            version=version,
            type=ComponentType.LIBRARY,
            licenses=[DisjunctiveLicense(id="BSD-2-Clause")],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            purl=PackageURL("github", "jemalloc", "jemalloc", version),
        )
    ]
    for library in LIBRARIES:
        command = ["dpkg-query", "-W", "-f=${Version}", library.package]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        parts.append(
            Component(
                name=library.name,
                version=re.split(r"[+-]", found)[0],
                type=ComponentType.LIBRARY,
                licenses=[DisjunctiveLicense(id=library.licence)],
                purl=PackageURL("deb", "debian", library.package, found),
            )
        )
    compiler = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True, check=True
    )
    parts.append(
        Component(
            name="libstdc++",
            version=compiler.stdout.strip(),
            type=ComponentType.LIBRARY,
            licenses=[LicenseExpression("GPL-3.0-or-later WITH GCC-exception-3.1")],
            description="the functions that GCC 8's shared library lacks",
        )
    )
    return parts


def installed_parts(root: Path) -> list[Component]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return [
        Component(
            name=wanted.name,
            version=str(wanted.specifier),
            type=ComponentType.LIBRARY,
            purl=PackageURL("pypi", name=wanted.name),
        )
        for wanted in map(Requirement, project["dependencies"])
    ]


def main() -> None:
    root = Path(sys.argv[1])
    version = version_of(root)
    parts = [*compiled_parts(root), *installed_parts(root)]
    bom = Bom(components=parts)
    bom.metadata.component = Component(
        name="uvmalloc",
        version=version,
        type=ComponentType.LIBRARY,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        purl=PackageURL("pypi", name="uvmalloc", version=version),
    )
    bom.register_dependency(bom.metadata.component, parts)
    # The same commit gives the same file: references are names, not random numbers.
    for part in [bom.metadata.component, *parts]:
        part.bom_ref.value = part.name
    bom.metadata.timestamp = datetime.fromtimestamp(
        int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc
    )
    bom.serial_number = uuid.uuid5(
        uuid.NAMESPACE_URL, f"uvmalloc-{version}-{bom.metadata.timestamp}"
    )
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the list of parts is wrong: {error}")
    print(text)


if __name__ == "__main__":
    main()
