#include "examples/command_line.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
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

using Option = CommandLine::Option;

Option Option::positive() { return Option(option_->check(CLI::PositiveNumber)); }
Option Option::not_negative() { return Option(option_->check(CLI::NonNegativeNumber)); }
Option Option::range(int least, int most) {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::one_of(std::vector<std::string> values) {
  return Option(option_->check(CLI::IsMember(std::move(values))));
}
Option Option::existing_file() { return Option(option_->check(CLI::ExistingFile)); }
Option Option::existing_directory() { return Option(option_->check(CLI::ExistingDirectory)); }
Option Option::required() { return Option(option_->required()); }
Option Option::describe(const char* help) { return Option(option_->description(help)); }
Option Option::hide_default() { return Option(option_->always_capture_default(false)); }
Option Option::needs(Option other) { return Option(option_->needs(other.option_)); }
Option Option::excludes(Option other) { return Option(option_->excludes(other.option_)); }
bool Option::is_given() const { return option_->count() > 0; }

CommandLine::CommandLine(const char* description, const char* name)
    : app_(std::make_unique<CLI::App>(description, name)) {}
CommandLine::~CommandLine() = default;

template <class T>
Option CommandLine::add_option(const char* name, T& value, const char* help) {
  return Option(app_->add_option(name, value, help));
}
template Option CommandLine::add_option(const char*, std::string&, const char*);
template Option CommandLine::add_option(const char*, int&, const char*);
template Option CommandLine::add_option(const char*, std::int64_t&, const char*);
template Option CommandLine::add_option(const char*, std::size_t&, const char*);
template Option CommandLine::add_option(const char*, double&, const char*);

Option CommandLine::add_flag(const char* name, bool& value, const char* help) {
  return Option(app_->add_flag(name, value, help));
}

Option CommandLine::option(const char* name) { return Option(app_->get_option(name)); }

void CommandLine::show_defaults(bool show) {
  app_->option_defaults()->always_capture_default(show);
}

void CommandLine::set_check(std::function<void()> check) { app_->callback(std::move(check)); }

int CommandLine::run(int argc, char** argv, const std::function<void()>& body) {
  const auto fail = [this](const std::string& what, int code) {
    std::fprintf(stderr, "%s: %s\n", app_->get_name().c_str(), what.c_str());
    return code;
  };
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app_->exit(help);
  } catch (const std::runtime_error& error) {  // CLI::ParseError or Refused
    return fail(error.what() + std::string(" (see --help)"), 2);
  }
  try {
    if (!std::getenv("OMP_NUM_THREADS")) at::set_num_threads(1);
    keep_freed_memory();
    body();
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
  return 0;
}

void TrainingOptions::add_to(CommandLine& line) {
  line.show_defaults(true);
  line.add_option("--data", data, "folder with MNIST's IDX files, or others of that format")
      .existing_directory();
  line.add_option("--epochs", epochs, "passes over the training images").positive();
  line.add_option("--batch-size", batch_size, "images of each worker in a step").positive();
  line.add_option("--lr", lr, "learning rate").positive();
  line.add_option("--seed", seed, "seed of the weights and of the order of the images");
}

}  // namespace examples
