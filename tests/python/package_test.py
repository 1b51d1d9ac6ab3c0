"""Tests what is true of the package as a whole: its version, what its import costs, and that
`python -m ddprun` is the program."""
import ast
import dataclasses
import inspect
import re
import shutil
import sys
import venv

import frame

import ddprun


class Package(frame.Test):
    def test_its_version_is_that_of_cmake(self):
        lists = (frame.SOURCES / "CMakeLists.txt").read_text()
        self.assertEqual(ddprun.__version__,
                         re.search(r"project\(ddprun VERSION ([\d.]+)", lists)[1])

    def test_importing_it_imports_neither_pytorch_nor_numpy(self):
        said = frame.run([sys.executable, "-c", "import sys, ddprun\n"
                          "print({'torch', 'numpy'} & set(sys.modules))"])
        self.assertEqual(said, "set()\n")

    def test_a_worker_imports_only_what_it_needs(self):
        """Of the standard library, apart from what python has imported at its start."""
        said = frame.run([sys.executable, "-c", "import sys; before = set(sys.modules)\n"
                          "import ddprun\n"
                          "print({'subprocess', 'ctypes', 'socket', 'tempfile', 'shutil', 'pickle'}"
                          " & (set(sys.modules) - before))"])
        self.assertEqual(said, "set()\n")

    def test_its_syntax_is_that_of_python_3_9(self):
        for file in (frame.SOURCES / "python/ddprun").rglob("*.py"):
            ast.parse(file.read_text(), str(file), feature_version=(3, 9))

    def test_every_public_name_is_there(self):
        for name in ddprun.__all__:
            self.assertTrue(hasattr(ddprun, name), name)
        self.assertLessEqual(set(ddprun.__all__), set(dir(ddprun)))
        with self.assertRaisesRegex(AttributeError, "no attribute 'bogus'"):
            ddprun.bogus

    def test_docstrings_have_the_parameters_and_the_fields(self):
        public = [getattr(module, name) for module in (ddprun, ddprun.checkpoint)
                  for name in module.__all__]
        classes = [one for one in public if inspect.isclass(one)]
        functions = [one for one in public if inspect.isfunction(one)]
        functions += [getattr(one, name) for one in classes for name in vars(one)
                      if not name.startswith("_") and inspect.isroutine(getattr(one, name))]
        self.assertGreater(len(functions), 25)
        for function in functions:
            with self.subTest(function.__qualname__):
                text = inspect.getdoc(function)
                for name in set(inspect.signature(function).parameters) - {"self"}:
                    self.assertRegex(text, rf"(?s)Parameters\n----------\n.*\b{name}\b")
        for one in filter(dataclasses.is_dataclass, classes):
            with self.subTest(one.__qualname__):
                for field in dataclasses.fields(one):
                    self.assertRegex(inspect.getdoc(one),
                                     rf"(?s)(Attributes|Parameters)\n-----.*\b{field.name}\b")


class Program(frame.Test):
    def test_the_module_is_the_program(self):
        by_module = frame.run([sys.executable, "-m", "ddprun", "--version"])
        self.assertEqual(by_module, frame.run([frame.DDPRUN, "--version"]))

    def test_the_module_takes_the_place_of_the_python(self):
        """The process becomes ddprun, which starts its workers with the same python."""
        script = self.script("""
            import os, sys
            guardian = os.readlink(f"/proc/{os.environ['PID']}/exe")
            print(os.path.basename(guardian), sys.executable)
        """)
        said = frame.run(["sh", "-c", f'PID=$$ exec "{sys.executable}" -m ddprun {script}'],
                         env=frame.environment(PYTHON_EXEC=None))
        self.assertEqual(said, f"ddprun {sys.executable}\n")

    def test_without_the_program_one_line_says_what_to_do(self):
        said = frame.run([sys.executable, "-m", "ddprun"], code=127,
                         env=frame.environment(PATH="/nowhere"))
        self.assertRegex(said, r"^ddprun: the program is neither in .* nor on PATH \(.*\)\n$")

    def test_a_program_of_another_machine_is_one_line(self):
        program = self.folder / "ddprun"
        program.write_bytes(b"\x7fELF of no machine")
        program.chmod(0o755)
        said = frame.run([sys.executable, "-m", "ddprun"], code=126,
                         env=frame.environment(PATH=str(self.folder)))
        self.assertRegex(said, rf"^ddprun: execute {program}: Exec format error \(.*\)\n$")

    def test_the_program_of_the_installation_comes_before_path(self):
        """An installation is a folder of packages, a list of its files, and its scripts."""
        installed = self.folder / "venv"
        venv.create(installed)
        [packages] = installed.glob("lib/python3*/site-packages")
        shutil.copytree(frame.SOURCES / "python/ddprun", packages / "ddprun",
                        ignore=shutil.ignore_patterns("__pycache__"))
        information = packages / "ddprun-0.1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: ddprun\nVersion: 0.1.0\n")
        (information / "RECORD").write_text("../../../bin/ddprun,,\nddprun/_program.py,,\n")
        program = installed / "bin/ddprun"
        find = [installed / "bin/python", "-c",
                "from ddprun._program import find_program; print(find_program())"]
        self.assertEqual(frame.run(find, env=frame.environment(PYTHONPATH=None)),
                         f"{frame.DDPRUN}\n")
        shutil.copy(frame.DDPRUN, program)
        self.assertEqual(frame.run(find, env=frame.environment(PYTHONPATH=None)), f"{program}\n")
        # The package of the sources is not of that installation.
        self.assertEqual(frame.run(find), f"{frame.DDPRUN}\n")


frame.main()
