#include "base/signal_names.h"

#include <utility>

#include "base/parse_number.h"

namespace ddprun {
namespace {

constexpr std::array kSignals = std::to_array<std::pair<int, std::string_view>>({
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
  for (const auto& [number, name] : kSignals) {
    if (number == signal) return std::string(name);
  }
  return "signal " + std::to_string(signal);
}

std::optional<int> signal_by_name(std::string_view name) {
  const std::optional<int> given = parse_number<int>(name);
  for (const auto& [number, known] : kSignals) {
    if (known == name || known.substr(3) == name || number == given) return number;
  }
  return std::nullopt;
}

}  // namespace ddprun
