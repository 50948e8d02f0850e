"""Sets the tag of the wheel, which pyproject.toml cannot set.

The wheel holds native libraries, so it is for this platform. They are not extension modules, so the
wheel works with every Python 3.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARIES = Path(__file__).parent / "uvmalloc" / "lib"


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return LIBRARIES.is_dir()


class AnyPythonWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=NativeDistribution, cmdclass={"bdist_wheel": AnyPythonWheel})
