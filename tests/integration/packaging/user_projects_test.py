#!/usr/bin/env python3
"""Checks how users' projects use ddprun: user_projects_test.py SOURCE_DIR BUILD_DIR TORCH_DIR
CXX

- A plain compiler command with the installed pkg-config file. The sample only preprocesses the
  program with these flags, and links an empty one. The whole (DDPRUN_TEST_WHOLE) builds and runs
  the program.
- A project that includes ddprun with FetchContent and has targets named like ddprun's
  examples.
- Two mistakes. Each must be reported in one clear line.
"""
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ON_THE_STACK = """
#include <ddprun/ddprun.hpp>
#include <torch/nn/module.h>
struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
};
void train(ddprun::ProcessGroup& group) {
  Net net;
  ddprun::DistributedDataParallel model(net, group);
}
"""


def run(*command, good=True, **options):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, **options)
    assert (result.returncode == 0) == good, (f"{shlex.join(map(str, command))} ended with "
                                              f"{result.returncode}:\n{result.stdout}")
    return result.stdout


def errors_in(output):
    return [line.split("error: ", 1)[1] for line in output.splitlines() if " error: " in line]


def check_mistakes(source, torch, compiler, work):
    program = work / "stack.cc"
    program.write_text(ON_THE_STACK)
    command = [compiler, "-fsyntax-only", f"-I{source}/worker_lib/include", f"-I{torch}/include",
               f"-I{torch}/include/torch/csrc/api/include", program]
    errors = errors_in(run(*command, "-std=c++17", good=False))
    assert "compile with -std=c++20" in errors[0] and len(errors) <= 2, errors
    errors = errors_in(run(*command, "-std=c++20", good=False))
    assert "hold the module by `auto net = std::make_shared<Net>();`" in errors[0], errors
    print("C++17 and a module on the stack: told in the compiler's first error")


def check_fetched(source, work):
    build = work / "fetched"
    run("cmake", "-G", "Ninja", "-B", build,
        "-S", source / "tests/integration/packaging/fetched_project",
        f"-DDDPRUN_SOURCES={source}")
    made = run("ninja", "-C", build, "-t", "commands", "all")
    assert "libddprun_worker.a" in made and "-o train_digits" in made, made[-2000:]
    assert "ddprun-src/examples" not in made and f"{source}/examples" not in made, (
        "examples are built")
    assert not any(word.endswith("bin/ddprun") for word in made.split()), (
        "programs that nothing links are built")
    run("cmake", "--install", build, "--prefix", work / "fetched_prefix")
    assert not (work / "fetched_prefix/bin/ddprun").exists()
    print("FetchContent: targets named like examples, and nothing is built or installed that was "
          "not asked for")


def check_plain_command(source, build, compiler, work):
    prefix = work / "prefix"
    run("cmake", "--install", build, "--prefix", prefix)
    if "CMAKE_BUILD_TYPE:STRING=Release\n" in (build / "CMakeCache.txt").read_text():
        run(source / "tests/integration/packaging/hardening_test.py",
            *sorted((prefix / "bin").iterdir()))
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "ddprun", env={
        "PATH": "/usr/bin:/bin:/usr/local/bin", "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}))
    folder_of_libraries = next(f[2:] for f in flags if f.startswith("-L"))
    assert str(prefix.resolve()) in str(pathlib.Path(folder_of_libraries).resolve()), flags
    main, program = source / "tests/integration/packaging/installed_package/main.cc", work / "train"
    if "DDPRUN_TEST_WHOLE" in os.environ:
        run(compiler, main, *flags, "-o", program)
        assert "sum 3 over 1 rank(s)" in run(program)
        print("a plain command with pkg-config: built and run")
        return
    run(compiler, "-E", main, *flags, "-o", work / "train.ii")
    (work / "empty.cc").write_text("int main() {}")
    run(compiler, work / "empty.cc", *flags, "-Wl,--no-as-needed", "-o", program)
    run(program)
    print("a plain command with pkg-config: the headers are found; an empty program links and runs")


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR BUILD_DIR TORCH_DIR CXX")
    source, build, torch = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_mistakes(source, torch, sys.argv[4], work)
        check_fetched(source, work)
        check_plain_command(source, build, sys.argv[4], work)


main()
