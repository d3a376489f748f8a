"""What pyproject.toml cannot say: the hyperparameter files, at the top of the repository, go with sb3_per.zoo into a wheel."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """
    Copies zoo_configs/*.yml to sb3_per/zoo/configs, where :func:`sb3_per.zoo.config_path` looks for them first. An editable
    install does without: there they are found at the top.
    """

    def run(self) -> None:
        """Build as ever, and add the files."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "sb3_per", "zoo", "configs")
            self.mkpath(str(target))
            for file in sorted(Path("zoo_configs").glob("*.yml")):
                self.copy_file(str(file), str(target / file.name))


setup(cmdclass={"build_py": BuildPy})
