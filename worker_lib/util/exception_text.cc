#include "worker_lib/util/exception_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <typeinfo>

namespace ddprun {

ExceptionText exception_text() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (!type) return {};
  ExceptionText words{.type = demangled(type->name()), .text = {}, .kind = {}};
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const DistError& error) {
    words.text = error.what();
    words.kind = error.kind();
    words.peer_rank = error.peer_rank();
  } catch (const std::exception& error) {
    words.text = error.what();
  } catch (...) {
  }
  return words;
}

std::string one_line_of(const ExceptionText& words) {
  const std::string line = words.text.substr(0, words.text.find('\n'));
  return line.empty() ? words.type : words.type + ": " + line;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : name;
}

}  // namespace ddprun
