#include "examples/command_line.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>

namespace examples {
namespace {

// Makes glibc keep freed memory. A step frees many blocks of megabytes, which the next step
// allocates again. By default glibc returns them to the kernel, and each of their pages then
// causes a page fault again.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace

void TrainingOptions::add_to(CLI::App& app) {
  app.option_defaults()->always_capture_default();
  app.add_option("--data", data, "folder with MNIST's IDX files, or others of that format")
      ->check(CLI::ExistingDirectory);
  app.add_option("--epochs", epochs, "passes over the training images")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", batch_size, "images of each worker in a step")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", lr, "learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "seed of the weights and of the order of the images");
}

int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (see --help)\n", app.get_name().c_str(), error.what());
    return 2;
  }
  try {
    if (!std::getenv("OMP_NUM_THREADS")) at::set_num_threads(1);
    keep_freed_memory();
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace examples
