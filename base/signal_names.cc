#include "base/signal_names.h"

#include <string_view>

#include "base/parse_number.h"

namespace ddprun {
namespace {

struct SignalName {
  int number;
  std::string_view name;
};

constexpr std::array kSignals = std::to_array<SignalName>({
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},   {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},     {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"},   {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},   {SIGCHLD, "SIGCHLD"},
    {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},   {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},   {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"}, {SIGIO, "SIGIO"},
    {SIGSYS, "SIGSYS"},
});

}  // namespace

std::string signal_name(int signal) {
  for (const SignalName& row : kSignals) {
    if (row.number == signal) return std::string(row.name);
  }
  return "signal " + std::to_string(signal);
}

std::optional<int> signal_by_name(std::string_view name) {
  const std::optional<int> number = parse_number<int>(name);
  for (const SignalName& row : kSignals) {
    if (row.name == name || row.name.substr(3) == name || row.number == number) return row.number;
  }
  return std::nullopt;
}

}  // namespace ddprun
