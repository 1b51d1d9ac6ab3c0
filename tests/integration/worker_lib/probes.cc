// worker_probe PROBE ARGUMENT...: runs one of the probes.
#include "tests/integration/worker_lib/probes.h"

#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  const struct {
    std::string_view name;
    int (*run)(int argc, char** argv);
  } probes[] = {{"checkpoint_memory", checkpoint_memory_probe::run},
                {"collectives", collectives_probe::run},
                {"ddp", ddp_probe::run},
                {"optimizers", optimizers_probe::run},
                {"state_file", state_file_probe::run}};
  for (const auto& probe : probes)
    if (argc > 1 && probe.name == argv[1]) return probe.run(argc - 1, argv + 1);
  std::fputs("usage: worker_probe PROBE ARGUMENT...; PROBE is", stderr);
  for (const auto& probe : probes) std::fprintf(stderr, " %s", probe.name.data());
  std::fputs("\n", stderr);
  return 2;
}
