// What every example's main() has in common: options, help, errors in one line.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/digits.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace examples {

// CommandLine: the options of a program, read by CLI11. Only command_line.cc includes CLI11,
// because its headers add 6 s to the compile time of a unit.
class CommandLine {
 public:
  // Option: an option that was added. Each function changes it and returns it.
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}

    Option positive();
    Option not_negative();
    Option range(int least, int most);
    Option one_of(std::vector<std::string> values);
    Option existing_file();
    Option existing_directory();
    Option required();
    Option describe(const char* help);
    Option hide_default();  // --help does not show it
    Option needs(Option other);
    Option excludes(Option other);

    bool is_given() const;

   private:
    CLI::Option* option_;
  };

  // Thrown by a check: the option, and what is wrong with its value.
  struct Refused : std::runtime_error {
    Refused(const std::string& option, const std::string& why)
        : std::runtime_error(option + ": " + why) {}
  };

  CommandLine(const char* description, const char* name);
  ~CommandLine();

  // Adds an option that sets `value`, which must outlive run(). T: std::string, int,
  // std::int64_t, std::size_t or double.
  template <class T>
  Option add_option(const char* name, T& value, const char* help = "");
  Option add_flag(const char* name, bool& value, const char* help);
  Option option(const char* name);  // one that was added

  // Says whether --help shows the defaults of the options that are added afterwards.
  void show_defaults(bool show);

  // Sets a function that checks what depends on several options. It throws Refused.
  void set_check(std::function<void()> check);

  // Parses the command line and calls `body`; with --help it only prints the help. Returns the
  // program's exit code: 0; 2 for bad options; 1 if `body` throws. An error is one line on stderr
  // that begins with the program's name.
  //
  // LibTorch gets one thread, unless OMP_NUM_THREADS says otherwise, because the workers of a host
  // share its cores. Freed memory stays with the process.
  int run(int argc, char** argv, const std::function<void()>& body);

 private:
  std::unique_ptr<CLI::App> app_;
};

// TrainingOptions: the options of every example that trains on digits.
struct TrainingOptions {
  std::string data = shipped_digits();
  std::int64_t epochs = 5;
  std::int64_t batch_size = 32;  // of each worker
  double lr = 0.5;
  std::int64_t seed = 1;

  // The object must live as long as `line` parses.
  void add_to(CommandLine& line);
};

}  // namespace examples
